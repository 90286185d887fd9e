import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Where did the time of this step go?", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import mnist_training, trace_of_a_step
    from lib.pages.stage import Stage
    from lib.storage.store import Store
    from lib.workers.engine import shared_engine


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "trace_of_a_step",
        "Where did the time of this step go?",
        "A profiler writes down who did what and when. Read as lanes over time, it shows when kernels run, the"
        " pieces of arithmetic, and for whom they wait.",
        address,
    )
    return


@app.cell(hide_code=True)
def live_question():
    mo.md(r"""
    ## 1 · A training on this machine, under its library's profiler

    JAX, TensorFlow and PyTorch each bring a profiler; of WebGPU the page makes one, from the device's timestamps and
    the host's clock. Steps run until nothing is compiled any more; then some are recorded. The topmost lane says, for
    each moment, whether a kernel runs, or who is waited for. A kernel counts from its start to its end: “arithmetic” on
    other pages is less, as it leaves out what a kernel takes with next to nothing to compute.
    """)
    return


@app.cell(hide_code=True)
def live_controls(address, live_stage):
    live_panel = trace_of_a_step.live_panel(address, live_stage)
    return (live_panel,)


@app.cell(hide_code=True)
def the_live_trace(live_panel, live_stage, set_live):
    trace_of_a_step.live(live_stage, live_panel, mnist_training.controls(live_panel), set_live)
    return


@app.cell(hide_code=True)
def file_question():
    mo.md(r"""
    ## 2 · Any trace

    The format is recognised from the content, and the file is read in a process of its own. Without one, here
    are five that this project recorded.
    """)
    return


@app.cell(hide_code=True)
def bring_a_trace():
    dropped = trace_of_a_step.drop()
    return (dropped,)


@app.cell(hide_code=True)
def read_the_files(dropped, file_stage, set_brought):
    trace_of_a_step.read(file_stage, dropped, set_brought)
    return


@app.cell(hide_code=True)
def file_controls(address, choices, get_brought, get_live):
    file_panel = trace_of_a_step.file_panel(address, get_brought(), get_live(), choices)
    return (file_panel,)


@app.cell(hide_code=True)
def the_file(file_panel, get_brought, get_live):
    trace_of_a_step.show_file(file_panel, get_brought(), get_live())
    return


@app.cell(hide_code=True)
def comparison_question():
    mo.md(r"""
    ## 3 · Two traces beside each other: what became shorter?

    Seconds of a step where the number of steps is known; calls by their own time, without what runs inside them.
    """)
    return


@app.cell(hide_code=True)
def comparison_controls(choices, get_brought, get_live):
    compare_panel = trace_of_a_step.compare_panel(get_brought(), get_live(), choices)
    return (compare_panel,)


@app.cell(hide_code=True)
def the_comparison(compare_panel, get_brought, get_live):
    trace_of_a_step.compare(compare_panel, get_brought(), get_live())
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** The same step by “JAX, one call an epoch”: what is left of Python and dispatch? Batch size 4,096: how
    much of the time do kernels run then? On a machine with a card, profile Keras with
    `nsys profile --trace=cuda`, export it with `nsys export --type=sqlite`, and drop the file.
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("trace_of_a_step", trace_of_a_step.settings())
    store = Store()
    live_stage, file_stage = (Stage(shared_engine(), store, viewer=address) for _ in range(2))
    get_live, set_live = mo.state(None)
    get_brought, set_brought = mo.state(())
    choices = trace_of_a_step.Choices()
    return address, choices, file_stage, get_brought, get_live, live_stage, set_brought, set_live


if __name__ == "__main__":
    app.run()
