import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The anatomy of a step", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import anatomy_of_a_step, mnist_training
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "anatomy_of_a_step",
        "Where does one training step go?",
        "One step multiplies a few small matrices. Around that, somebody writes a loop, calls a library, waits for an"
        " answer and fetches the next images. Each of these is measured here by an experiment of its own. Move a"
        " slider: does the arithmetic grow, or the rest?",
        address,
    )
    return


@app.cell(hide_code=True)
def controls(address, stage):
    panel = anatomy_of_a_step.panel(address, stage)
    return (panel,)


@app.cell(hide_code=True)
def the_step(panel, stage):
    anatomy_of_a_step.show(stage, panel, mnist_training.controls(panel))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: which parts stay as long as they were? Those are the overhead, paid once a
    step whatever the step does. A network of 1,024 neurons: from where on is arithmetic the largest part by every
    library? There, and not before, faster hardware helps.
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("anatomy_of_a_step", anatomy_of_a_step.settings())
    stage = Stage(shared_engine(), Store())
    return address, stage


if __name__ == "__main__":
    app.run()
