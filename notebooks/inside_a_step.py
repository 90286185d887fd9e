import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Inside a step", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    from functools import partial

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
        "One step multiplies a few small matrices. Around them, Python runs a loop, calls a library, waits for the"
        " result and fetches the next images. Here you take the step apart, profile it, and mistime it.",
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

    A separate experiment measures each part. Move a slider: does the arithmetic grow, or the overhead?
    """)
    return


@app.cell(hide_code=True)
def its_parts(lab, step):
    today = lab.page.today
    lab.measure(step, partial(anatomy.tasks, today), partial(anatomy.draw, today))
    return


@app.cell(hide_code=True)
def which_parts_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: which parts stay the same? Those are overhead, paid once per step whatever
    the step computes. A hidden layer of 1,024 neurons: at which batch size is arithmetic the largest part in every
    library? From there on, faster hardware helps them all; below, only those with little overhead.
    """)
    return


@app.cell(hide_code=True)
def profile_controls():
    mo.md(r"""
    ## 2 · Under a profiler

    JAX, TensorFlow and PyTorch each bring a profiler that records what ran, and when. Steps run until nothing more
    compiles; then a few are recorded. The top lane says at each moment whether a kernel is running or what the step is
    waiting for. A kernel counts from start to end. “Arithmetic” in section 1 is less: it leaves out the time that a
    kernel takes even with almost nothing to compute.
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

    Drop a trace: its format is recognised by content, and a separate process reads it. No trace at hand? Here are five
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
    **Try next.** The same step with “JAX, one call an epoch”: what is left of Python and dispatch? Batch size 4,096:
    what share of the time do kernels run? On a machine with a GPU, profile Keras with `nsys profile --trace=cuda`,
    export it with `nsys export --type=sqlite`, and drop the file.
    """)
    return


@app.cell(hide_code=True)
def traps_controls():
    mo.md(r"""
    ## 4 · How wrong can a stopwatch be?

    One training step, one machine, one program, and six plausible ways to time it wrongly. Each is measured next to the
    right way.
    """)
    return


@app.cell(hide_code=True)
def six_traps(lab, mistimed):
    lab.measure(mistimed, anatomy.trap_tasks, anatomy.draw_traps)
    return


@app.cell(hide_code=True)
def which_traps_next():
    mo.md(r"""
    **Try next.** Batch size 1, where a step is shortest: which mistakes grow? Batch size 4,096: which ones vanish? On a
    WebGPU device, a submission returns at once, however much work it holds.
    """)
    return


if __name__ == "__main__":
    app.run()
