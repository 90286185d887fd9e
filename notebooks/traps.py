import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="How to mistime a training step", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import traps, mnist_training
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "traps",
        "How wrong can a stopwatch be?",
        "One training step, one machine, one program, and six honest-looking ways to time it wrongly. Each stands"
        " beside the right one, both measured now.",
        address,
    )
    return


@app.cell(hide_code=True)
def controls(address, stage):
    panel = traps.panel(address, stage)
    return (panel,)


@app.cell(hide_code=True)
def the_traps(panel, stage):
    traps.show(stage, panel, mnist_training.controls(panel))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, where a step is shortest: which mistakes grow? Batch size 4,096: which ones vanish?
    Where the device may be one of WebGPU: a submission returns at once, whatever it asks for.
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("traps", traps.settings())
    stage = Stage(shared_engine(), Store())
    return address, stage


if __name__ == "__main__":
    app.run()
