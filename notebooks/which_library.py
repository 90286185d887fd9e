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
        "The same network, images and formulas. Only the library, the batch size and the machine differ.",
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

    Seconds per epoch for every library that can run here and every batch size, measured in turns and in random order.
    Choose a cell to see its epochs. A larger batch makes faster epochs but needs more of them: “seconds to the target
    accuracy” counts both.
    """)
    return


@app.cell(hide_code=True)
def the_race(lab, panel):
    lab.work(panel, *race.racing(lab.page, lab.table))
    return


@app.cell(hide_code=True)
def one_cell(lab, table):
    race.one_cell(lab.page, table.value.get("selected", ""))
    return


@app.cell(hide_code=True)
def machine_controls():
    mo.md(r"""
    ## 2 · Which machine for which work?

    The same experiments, measured on other machines. A bigger GPU is not always faster. “Surely” means that the 95 %
    interval of the ratio excludes 1 and the difference exceeds 3 %; published figures have no spread, so comparisons
    with them are never sure.
    """)
    return


@app.cell(hide_code=True)
def choose(dropped, lab):
    choice = lab.machines.panel(dropped())
    choice
    return (choice,)


@app.cell(hide_code=True)
def the_machines(choice, compared, lab):
    lab.work(compared, *lab.machines.compared(choice))
    return


@app.cell(hide_code=True)
def article_question():
    mo.md(r"""
    ## 3 · The article's table, carried on

    Three experiments of three epochs each, as in the second article. Published figures are totals without a spread.
    Ours add up measured parts: each training's first call, three epochs, and an evaluation after each; bars are
    quartiles. First calls, which compile, have their own mark: a second run in the same process skips them. The
    article's own library is next to the one that is fastest over all three.
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

    Seconds per epoch on the same axes for all machines; bars are quartiles, dashed lines GPUs. Where the lines of one
    machine are further apart than one library's lines on two machines, the library matters more than the machine.
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
    machine with `python -m lib.cli.record my_machine.json` and drop the file above, or rent a GPU for two hours:
    `deploy/gcp create --kind l4`, then `deploy/gcp record`.
    """)
    return


if __name__ == "__main__":
    app.run()
