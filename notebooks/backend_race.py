import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The race of the backends", css_file="../lib/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib import live_race, page
    from lib.engine import shared_engine
    from lib.live_filling import Stage
    from lib.store import Store
    from lib.widgets import RaceTable


@app.cell(hide_code=True)
def title(address):
    page.plain_title(
        "backend_race",
        "Which way of training is fastest here?",
        "The same network, 784→128→10, the same images, the same arithmetic: seconds an epoch by every way that can run here and by batch "
        "size, measured in turns and in random order. Choose a cell to see its epochs and what they say.",
        address,
    )
    return


@app.cell(hide_code=True)
def controls(address, stage):
    panel = live_race.panel(address, stage)
    live_race.controls(panel)
    return (panel,)


@app.cell(hide_code=True)
def the_race(panel, race_table, stage):
    live_race.follow(stage, race_table, panel)
    return


@app.cell(hide_code=True)
def the_table():
    race_table = RaceTable()
    shown = mo.ui.anywidget(race_table)
    shown
    return race_table, shown


@app.cell(hide_code=True)
def one_cell(shown, store):
    live_race.detail(store, shown.value.get("selected", ""))
    return


@app.cell(hide_code=True)
def the_record(store):
    live_race.record(store)
    return


@app.cell(hide_code=True)
def shared_state():
    address = page.opened("backend_race", live_race.settings())
    store = Store()
    stage = Stage(shared_engine(), store)
    return address, stage, store


if __name__ == "__main__":
    app.run()
