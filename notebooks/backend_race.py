import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The race of the backends", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import backend_race, mnist_training
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store
    from lib.pages.widgets import RaceTable


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "backend_race",
        "Which backend is fastest here?",
        "The same network, 784→128→10, the same images, the same formulas: seconds per epoch by every backend that"
        " can run here and by batch size, measured in turns and in random order. Choose a cell to see its epochs and"
        " what they say.",
        address,
    )
    return


@app.cell(hide_code=True)
def controls(address, stage):
    panel = backend_race.panel(address, stage)
    backend_race.controls(panel)
    return (panel,)


@app.cell(hide_code=True)
def the_race(panel, race_table, stage):
    backend_race.follow(stage, race_table, panel)
    return


@app.cell(hide_code=True)
def the_table():
    race_table = RaceTable()
    shown = mo.ui.anywidget(race_table)
    shown
    return race_table, shown


@app.cell(hide_code=True)
def one_cell(shown, store):
    backend_race.detail(store, shown.value.get("selected", ""))
    return


@app.cell(hide_code=True)
def the_record(store):
    backend_race.record(store)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("backend_race", backend_race.settings())
    store = Store()
    stage = Stage(shared_engine(), store)
    return address, stage, store


if __name__ == "__main__":
    app.run()
