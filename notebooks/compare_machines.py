import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Which machine for which work?", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.experiments.recorded_machines import Collection
    from lib.pages import compare_machines, mnist_training
    from lib.pages.stage import Stage
    from lib.storage.store import Store
    from lib.workers.engine import shared_engine


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "compare_machines",
        "Which machine for which work?",
        "The same experiments on different machines, each measured where it stands, with what an hour of it costs. A"
        " machine with a bigger graphics card is not always the quicker one; here is for what it is, and how sure"
        " that is.",
        address,
    )
    return


@app.cell(hide_code=True)
def bring_exports():
    dropped = compare_machines.drop()
    return (dropped,)


@app.cell(hide_code=True)
def read_the_exports(dropped, set_given, stage):
    compare_machines.read(stage, dropped, set_given)
    return


@app.cell(hide_code=True)
def choose(address, collection, remembered):
    panel = compare_machines.panel(address, collection, remembered)
    compare_machines.controls(panel)
    return (panel,)


@app.cell(hide_code=True)
def the_machines(collection, now):
    compare_machines.machines(collection, now)
    return


@app.cell(hide_code=True)
def article_question():
    mo.md(r"""
    ## 1 · The article's table, carried on

    Three experiments of three epochs each, as the second article trained them. Published figures are the article's,
    whole and without a spread. Ours are put together from measured parts: for each training its first call, three
    epochs and an evaluation after each, with the quartiles of the epochs in brackets. First calls, which compile, are
    also a column of their own: a second run in the same process does without them. Beside the article's own backend
    stands the one that takes the least for all three together.
    """)
    return


@app.cell(hide_code=True)
def the_article(now):
    compare_machines.article(now)
    return


@app.cell(hide_code=True)
def epoch_question():
    mo.md(r"""
    ## 2 · An epoch, by backend and batch size

    The same axes for all machines; bars are quartiles, dashed lines graphics cards. Where lines of one machine lie
    further apart than those of one backend on two machines, the backend matters more than the machine.
    """)
    return


@app.cell(hide_code=True)
def the_epochs(now):
    compare_machines.epochs(now)
    return


@app.cell(hide_code=True)
def accuracy_question():
    mo.md(r"""
    ## 3 · To an accuracy

    Large batches make quick epochs, but more of them are needed. All backends and machines take the same steps, so
    the epochs are counted once, on three seeds, and multiplied by each machine's seconds.
    """)
    return


@app.cell(hide_code=True)
def the_accuracy(now):
    compare_machines.accuracy(now)
    return


@app.cell(hide_code=True)
def all_figures(now):
    compare_machines.figures(now)
    return


@app.cell(hide_code=True)
def step_question():
    mo.md(r"""
    ## 4 · Where the step goes, and what many at once save

    Shares of one step on 32 images; what is not arithmetic is what a faster card cannot shorten. Below, the time that
    one network costs when many share a program.
    """)
    return


@app.cell(hide_code=True)
def the_steps(now):
    compare_machines.steps(now)
    return


@app.cell(hide_code=True)
def many_at_once(now):
    compare_machines.models(now)
    return


@app.cell(hide_code=True)
def verdict_question():
    mo.md(r"""
    ## 5 · Which machine for which work?

    Each machine by its fastest backend. “Surely” means that the 95 % interval of the ratio leaves out 1, and that it
    is more than 3 %; a published figure has no spread, so nothing is sure beside one.
    """)
    return


@app.cell(hide_code=True)
def the_verdict(now):
    compare_machines.verdict(now)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Record your own machine with `python -m lib.cli.record my_machine.json` and drop the file above. A
    graphics card for two hours: `deploy/gcp create --kind l4`, then `deploy/gcp record`. Then set the prices, and see
    for which work the cheapest machine is another than the quickest.
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("compare_machines", compare_machines.settings())
    remembered = compare_machines.Remembered()
    stage = Stage(shared_engine(), Store(), address)
    get_given, set_given = mo.state(Collection())
    return address, get_given, remembered, set_given, stage


@app.cell(hide_code=True)
def all_machines(get_given):
    collection = compare_machines.gather(get_given())
    return (collection,)


@app.cell(hide_code=True)
def what_is_compared(collection, panel):
    now = compare_machines.chosen(panel, collection)
    return (now,)


if __name__ == "__main__":
    app.run()
