import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Which library?", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.labs.which_library import machines, race
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error


@app.cell(hide_code=True)
def title():
    lab = machines.WhichLab()
    dropped, table = lab.machines.dropped, lab.table
    lab.title(
        "Which library is fastest, and on which machine?",
        "The same network, the same images, the same formulas. What differs is the library, the size of a"
        " batch, and the machine.",
    )
    return dropped, lab, table


@app.cell(hide_code=True)
def panels(lab):
    panel, compared = map(lab.controls, lab.page.sections)
    return panel, compared


@app.cell(hide_code=True)
def race_controls():
    mo.md(r"""
    ## 1 · Which library here?

    Seconds per epoch by every library that can run on this machine and by batch size, measured in turns and in random
    order. Choose a cell to see its epochs and what they say. A larger batch makes faster epochs and needs more of them:
    “seconds to the target accuracy” counts both.
    """)
    return


@app.cell(hide_code=True)
def the_race(lab, panel):
    lab.work(panel, *race.racing(lab.page, lab.table))
    return


@app.cell(hide_code=True)
def one_cell(lab, table):
    race.one_cell(lab.page.store, table.value.get("selected", ""))
    return


@app.cell(hide_code=True)
def machine_controls():
    mo.md(r"""
    ## 2 · Which machine for which work, and at what cost?

    The same experiments on other machines, each measured where it stands. A machine with a bigger graphics card is not
    always the quicker one. “Surely” means that the 95 % interval of the ratio leaves out 1, and that it is more than
    3 %; a published figure has no spread, so nothing is sure beside one.
    """)
    return


@app.cell(hide_code=True)
def choose(dropped, lab):
    choice = lab.machines.panel(dropped())
    machines.choices(choice)
    return (choice,)


@app.cell(hide_code=True)
def the_machines(choice, compared, lab):
    lab.work(compared, *lab.machines.compared(choice))
    return


@app.cell(hide_code=True)
def article_question():
    mo.md(r"""
    ## 3 · The article's table, carried on

    Three experiments of three epochs each, as the second article trained them. Published figures are the article's,
    whole and without a spread. Ours are put together from measured parts: for each training its first call, three
    epochs and an evaluation after each; bars are quartiles. First calls, which compile, have a mark of their own: a
    second run in the same process does without them. Beside the article's own backend stands the one that takes the
    least for all three together.
    """)
    return


@app.cell(hide_code=True)
def the_article(choice, lab):
    machines.article(lab.machines.chosen(choice))
    return


@app.cell(hide_code=True)
def epoch_question():
    mo.md(r"""
    ## 4 · Library or machine?

    Seconds of an epoch on the same axes for all machines; bars are quartiles, dashed lines graphics cards. Where lines
    of one machine lie further apart than those of one library on two machines, the library matters more than the
    machine.
    """)
    return


@app.cell(hide_code=True)
def the_epochs(choice, lab):
    machines.epochs(lab.machines.chosen(choice))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Show seconds to 97 % instead of seconds per epoch: which batch size is best now? Record your own
    machine with `python -m lib.cli.record my_machine.json` and drop the file above, or rent a graphics card for two
    hours: `deploy/gcp create --kind l4`, then `deploy/gcp record`. Then set the prices: for which work is the cheapest
    machine not the quickest?
    """)
    return


if __name__ == "__main__":
    app.run()
