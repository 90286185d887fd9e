import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="In front of a class", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import mnist_training, teacher
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "teacher",
        "What does the class expect?",
        "Who predicts a result before seeing it learns more from it than who only watches. Have the sections of the"
        " first notebook ask first, see what the class says, show it to everybody, then talk about it.",
        address,
    )
    return


@app.cell(hide_code=True)
def controls(desk):
    teacher.controls(desk)
    return


@app.cell(hide_code=True)
def where_they_are(desk, stages):
    teacher.watch(stages[0], desk, teacher.where)
    return


@app.cell(hide_code=True)
def guesses_prose(desk):
    mo.md("## What they guess") if desk is not None else None
    return


@app.cell(hide_code=True)
def guesses(desk, stages):
    teacher.watch(stages[1], desk, teacher.guesses)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("teacher", {})
    stages = [Stage(shared_engine(), Store()) for _ in range(2)]
    desk = None if teacher.is_refused() else teacher.Desk()
    return address, desk, stages


if __name__ == "__main__":
    app.run()
