import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Many trainings at once", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import parallel_sweeps, mnist_training
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "parallel_sweeps",
        "How many networks can be trained at once?",
        "Nobody trains one network: one tries learning rates, widths, depths. These trainings do not depend on each"
        " other, so they can run side by side, in processes of their own or as one program that multiplies all their"
        " matrices together. Which of them pays, and from how many on?",
        address,
    )
    return


@app.cell(hide_code=True)
def comparison_question(address, compare_stage):
    compare_panel = parallel_sweeps.comparison_panel(address, compare_stage)
    mo.md(r"""
    ## 1 · The article's sweep

    The article trains five learning rates, 0.001 to 10, for ten epochs each: with Keras one after another, then in
    five processes, then with `vmap`. Here are these three and more, each timed whole, for as many epochs as the
    slider says; a rate of 10 does not learn, but it is trained to the end all the same.
    """)
    return (compare_panel,)


@app.cell(hide_code=True)
def the_comparison(compare_panel, compare_stage):
    parallel_sweeps.comparison(compare_stage, compare_panel, mnist_training.controls(compare_panel))
    return


@app.cell(hide_code=True)
def count_question(address, count_stage):
    count_panel = parallel_sweeps.count_panel(address, count_stage)
    mo.md(r"""
    ## 2 · How many in one program?

    All networks of a program read the same images, so their first layers are one large product instead of many small
    ones, and one call serves all. The time of each falls until the arithmetic is all there is, or until the
    parameters of all no longer fit into the caches.
    """)
    return (count_panel,)


@app.cell(hide_code=True)
def the_count(count_panel, count_stage):
    parallel_sweeps.saturation(count_stage, count_panel, mnist_training.controls(count_panel))
    return


@app.cell(hide_code=True)
def mixed_question(address, mixed_stage):
    mixed_panel = parallel_sweeps.mixed_panel(address, mixed_stage)
    mo.md(r"""
    ## 3 · Must they be alike?

    The article says that `vmap` needs networks of one shape. It does, but a narrow network can be padded with zeros
    to the width of the widest, and the zeros stay zero: ReLU passes no gradient at zero. The price is arithmetic on
    nothing.
    """)
    return (mixed_panel,)


@app.cell(hide_code=True)
def the_mix(mixed_panel, mixed_stage):
    parallel_sweeps.mixed(mixed_stage, mixed_panel, mnist_training.controls(mixed_panel))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1 in the second experiment: there, nearly all is overhead, and sharing it pays most. Then
    4,096, where nothing is left to share. In the third: from which difference on is padding no longer worth it?
    `sweep()` in `lib/sweeps/sweep.py` makes that choice by itself, from a few measured steps.
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("parallel_sweeps", parallel_sweeps.settings())
    compare_stage, count_stage, mixed_stage = (Stage(shared_engine(), Store(), address) for _ in range(3))
    return address, compare_stage, count_stage, mixed_stage


if __name__ == "__main__":
    app.run()
