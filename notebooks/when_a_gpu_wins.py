import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="When a GPU wins", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.labs.when_a_gpu_wins import border, work
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error
    from lib.ui.lab import Lab


@app.cell(hide_code=True)
def title():
    lab = Lab("when_a_gpu_wins", **work.PANELS)
    lab.title(
        "When does a GPU win?",
        "The articles answer with a rule of thumb from machines that you do not have. Here your CPU is calibrated while"
        " you read, and the border between it and a GPU is predicted for every width and batch size, with its"
        " uncertainty. Filled marks are measured here, rings recorded, ticks published; the rest is predicted.",
    )
    return (lab,)


@app.cell(hide_code=True)
def panels(lab):
    win, here, what, larger, cost, remedy = map(lab.controls, lab.page.sections)
    return win, here, what, larger, cost, remedy


@app.cell(hide_code=True)
def border_controls():
    mo.md(r"""
    ## 1 · Where is the border?

    The time of a step is the sum of its calls, launches, bytes and arithmetic. A GPU is faster at the last two and
    slower at the first two, so it wins where a step has much work: wide layers, large batches.
    """)
    return


@app.cell(hide_code=True)
def the_border(calibrated, win):
    calibrated.answer(win, border.border)
    return


@app.cell(hide_code=True)
def calibration_controls():
    mo.md(r"""
    ## 2 · How well is this machine known?

    Steps of randomly drawn networks are measured, and costs fitted to them. Each step is then predicted from all
    others; the remaining errors give the intervals. Measurements are kept, and the next visit continues them.
    """)
    return


@app.cell(hide_code=True)
def the_calibration(here, lab):
    lab.work(here, *work.calibration(lab.page))
    calibrated = lab  # a script calibrates before it predicts
    return (calibrated,)


@app.cell(hide_code=True)
def imagined_controls():
    mo.md(r"""
    ## 3 · What if?

    Imagine a GPU: start from a known one and change its costs. The dotted line shows the old border. The last sentence
    changes no cost, only how often the host must call the GPU.
    """)
    return


@app.cell(hide_code=True)
def the_imagined_card(calibrated, what, win):
    calibrated.answer(what, border.imagined_card, win)
    return


@app.cell(hide_code=True)
def larger_controls():
    mo.md(r"""
    ## 4 · Larger work

    The network that the second article proposes for a GPU, a small convolutional one, and ResNet-18. A step of the
    first two is measured here too; predictions do not model how a library computes a convolution. Each known device
    trains with its fastest library.
    """)
    return


@app.cell(hide_code=True)
def the_larger_work(calibrated, larger):
    calibrated.work(larger, work.measured_here, work.larger)
    return


@app.cell(hide_code=True)
def cost_controls():
    mo.md(r"""
    ## 5 · What does it cost?

    Faster is not always cheaper: each machine has its hourly price, and a larger batch needs more epochs.
    """)
    return


@app.cell(hide_code=True)
def the_cost(calibrated, cost):
    calibrated.answer(cost, work.cost)
    return


@app.cell(hide_code=True)
def remedy_controls():
    mo.md(r"""
    ## 6 · What would help?

    Choose your network and your library. Each remedy changes one thing and shows the line to paste. Its gain is
    predicted from the steps measured in section 2; press its name to apply it, measure it, and see how far off the
    prediction was.
    """)
    return


@app.cell(hide_code=True)
def the_remedies(calibrated, remedy):
    calibrated.work(remedy, *work.remedies(calibrated.page))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Drive the GPU one operation at a time: how wide must a network be? Then by a compiled epoch with 64
    networks at once: where does the border go, and why does a CPU gain less? Remedies at batch size 1, then 4,096:
    which is worth most at each end?
    """)
    return


if __name__ == "__main__":
    app.run()
