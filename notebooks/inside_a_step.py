import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Inside a step", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.labs.inside_a_step import anatomy, trace
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error
    from lib.ui.lab import Lab


@app.cell(hide_code=True)
def title():
    lab = Lab("inside_a_step", step=anatomy.Step, live=trace.Live, file=trace.TraceFile, traps=anatomy.Traps)
    lab.title(
        "Where does one training step go?",
        "One step multiplies a few small matrices. Around that, somebody writes a loop, calls a library, waits for an"
        " answer and fetches the next images. Here the step is taken apart, watched by a profiler, and mistimed.",
    )
    return (lab,)


@app.cell(hide_code=True)
def panels(lab):
    step, live, file, mistimed = map(lab.controls, lab.page.sections)
    traces = trace.Traces(lab.page.store)
    return step, live, file, mistimed, traces


@app.cell(hide_code=True)
def parts_controls():
    mo.md(r"""
    ## 1 · In its parts

    Each part is measured by an experiment of its own. Move a slider: does the arithmetic grow, or the rest?
    """)
    return


@app.cell(hide_code=True)
def its_parts(lab, step):
    lab.measure(step, anatomy.tasks, anatomy.draw)
    return


@app.cell(hide_code=True)
def which_parts_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: which parts stay as long as they were? Those are the overhead, paid once a
    step whatever the step does. A network of 1,024 neurons: from where on is arithmetic the largest part by every
    library? From there on faster hardware helps them all; before, it helps those with little overhead.
    """)
    return


@app.cell(hide_code=True)
def profile_controls():
    mo.md(r"""
    ## 2 · Under a profiler

    JAX, TensorFlow and PyTorch each bring a profiler, which writes down who did what and when. Steps run until nothing
    is compiled any more; then some are recorded. The topmost lane says, for each moment, whether a kernel runs, a piece
    of arithmetic, or who is waited for. A kernel counts from its start to its end: “arithmetic” above is less, as it
    leaves out what a kernel takes with next to nothing to compute.
    """)
    return


@app.cell(hide_code=True)
def its_profile(lab, live, traces):
    lab.work(live, traces.profile, traces.draw_profile)
    return


@app.cell(hide_code=True)
def file_controls():
    mo.md(r"""
    ## 3 · Any trace

    The format is recognised from the content, and the file is read in a process of its own. Without one, here are five
    that this project recorded.
    """)
    return


@app.cell(hide_code=True)
def any_trace(file, lab, traces):
    lab.work(file, traces.read, traces.draw)
    return


@app.cell(hide_code=True)
def which_trace_next():
    mo.md(r"""
    **Try next.** The same step by “JAX, one call an epoch”: what is left of Python and dispatch? Batch size 4,096: how
    much of the time do kernels run then? On a machine with a card, profile Keras with
    `nsys profile --trace=cuda`, export it with `nsys export --type=sqlite`, and drop the file.
    """)
    return


@app.cell(hide_code=True)
def traps_controls():
    mo.md(r"""
    ## 4 · How wrong can a stopwatch be?

    One training step, one machine, one program, and six honest-looking ways to time it wrongly. Each stands beside the
    right one, both measured now.
    """)
    return


@app.cell(hide_code=True)
def six_traps(lab, mistimed):
    lab.measure(mistimed, anatomy.trap_tasks, anatomy.draw_traps)
    return


@app.cell(hide_code=True)
def which_traps_next():
    mo.md(r"""
    **Try next.** Batch size 1, where a step is shortest: which mistakes grow? Batch size 4,096: which ones vanish?
    Where the device may be one of WebGPU: a submission returns at once, whatever it asks for.
    """)
    return


if __name__ == "__main__":
    app.run()
