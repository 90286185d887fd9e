import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="What would help?", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import live_calibration, mnist_training, what_would_help
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "what_would_help",
        "What would make your training faster?",
        "Lines to change in your own program of Keras, PyTorch or JAX. What each gains is predicted first, and"
        " measured when you press its button.",
        address,
    )
    return


@app.cell(hide_code=True)
def remedy_question(address, stage):
    panel = what_would_help.panel(address, stage)
    mo.md(r"""
    ## 1 · Remedies

    Choose what you train, and by what. Each remedy changes one thing, and shows the line to paste. Its gain is
    predicted from steps of other networks that were measured on this machine (section 2); a press on its name applies
    it, and measures it. How far the prediction was off stands beside it.
    """)
    return (panel,)


@app.cell(hide_code=True)
def the_remedies(changes, panel, stage):
    what_would_help.show(stage, changes, panel, mnist_training.controls(panel, what_would_help.BUTTONS))
    return


@app.cell(hide_code=True)
def calibration_question(address, calibration_stage):
    calibration_panel = live_calibration.panel(what_would_help.CALIBRATIONS, address, calibration_stage)
    mo.md(r"""
    ## 2 · What the predictions are made from

    Steps of networks drawn at random are measured once for each way to train, and kept. Three ways are measured without
    being asked for; choose others to see what these would gain.
    """)
    return (calibration_panel,)


@app.cell(hide_code=True)
def the_calibrations(calibration_panel, calibration_stage):
    live_calibration.show(
        what_would_help.CALIBRATIONS, calibration_stage, calibration_panel, mnist_training.controls(calibration_panel)
    )
    changes = what_would_help.news(calibration_stage)  # made here: a script calibrates before it predicts
    return (changes,)


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: which remedy is worth most at which end? Then NumPy in place of JAX: what is
    there to compile?
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("what_would_help", what_would_help.settings())
    stage = Stage(shared_engine(), Store())
    calibration_stage = Stage(stage.engine, stage.store, stage.viewer)
    return address, calibration_stage, stage


if __name__ == "__main__":
    app.run()
