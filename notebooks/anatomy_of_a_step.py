import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The anatomy of a step", css_file="../lib/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib import live_anatomy, page
    from lib.engine import shared_engine
    from lib.live_filling import Stage
    from lib.store import Store


@app.cell(hide_code=True)
def title(address):
    page.plain_title(
        "anatomy_of_a_step",
        "Where does one training step go?",
        "One step multiplies a few small matrices. Around that, somebody writes a loop, calls a library, waits for an answer and fetches the next "
        "images. Each of these is measured here by an experiment of its own. Move a slider: does the arithmetic grow, or the rest?",
        address,
    )
    return


@app.cell(hide_code=True)
def controls(address, stage):
    panel = live_anatomy.panel(address, stage)
    return (panel,)


@app.cell(hide_code=True)
def the_step(panel, stage):
    live_anatomy.show(stage, panel, page.controls(panel))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: which parts stay as long as they were? Those are the overhead, paid once a step whatever the step does. A network
    of 1,024 neurons: from where on is arithmetic the largest part by every library? There, and not before, faster hardware helps.
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = page.opened("anatomy_of_a_step", live_anatomy.settings())
    stage = Stage(shared_engine(), Store())
    return address, stage


if __name__ == "__main__":
    app.run()
