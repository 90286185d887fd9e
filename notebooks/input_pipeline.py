import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="What feeds a step", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import input_pipeline, mnist_training
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "input_pipeline",
        "Does the step wait for its data?",
        "A faster device helps only while it has something to do. Here the same images reach the same step in many"
        " ways; each is timed alone and together with the step, so that it shows who waits for whom.",
        address,
    )
    return


@app.cell(hide_code=True)
def feeds_question(address, feeds_stage):
    feeds_panel = input_pipeline.feeds_panel(address, feeds_stage)
    mo.md(r"""
    ## 1 · What feeds the step?

    If each batch takes the data set $D$ seconds and the step $S$, one after the other they take $D + S$; with the next
    batch made ahead while the step runs, at best $\max(D, S)$; with $c$ cores at work on the batches, at best
    $\max(D / c, S)$; and cached, $S$ alone. Which of these is reached depends on the machine, on the library, and on
    whether the preprocessing holds Python's interpreter lock: if it does, more threads only take turns. Choose
    the feed that you use, then apply what would help.
    """)
    return (feeds_panel,)


@app.cell(hide_code=True)
def the_feeds(feeds_panel, feeds_stage):
    input_pipeline.feeds(feeds_stage, feeds_panel, mnist_training.controls(feeds_panel))
    feeds_begun = feeds_stage.running
    return (feeds_begun,)


@app.cell(hide_code=True)
def placement_question(placement_stage):
    placement_panel = input_pipeline.small_panel(placement_stage)
    mo.md(r"""
    ## 2 · Where does each operation run?

    TensorFlow gives each operation to a device that has a kernel for it, and copies what lies elsewhere. This is read
    from the graphs that it really ran, after it had placed and fused them.
    """)
    return (placement_panel,)


@app.cell(hide_code=True)
def the_placement(placement_panel, placement_stage):
    input_pipeline.placement(placement_stage, placement_panel, mnist_training.controls(placement_panel))
    placement_begun = placement_stage.running
    return (placement_begun,)


@app.cell(hide_code=True)
def models_question(models_stage):
    models_panel = input_pipeline.small_panel(models_stage)
    mo.md(r"""
    ## 3 · What does creating a model take?

    One article clones a model on the CPU and then on the GPU in one process: whichever comes first also pays for
    starting the library. So here each model has a fresh process, and what is done again stands beside the first time.
    """)
    return (models_panel,)


@app.cell(hide_code=True)
def the_models(models_panel, models_stage):
    input_pipeline.models(models_stage, models_panel, mnist_training.controls(models_panel))
    models_begun = models_stage.running
    return (models_begun,)


@app.cell(hide_code=True)
def checklist_question():
    mo.md(r"""
    ## 4 · The articles' checklist

    What two articles advise, each beside what was measured above, and the finding that follows, if one does.
    """)
    return


@app.cell(hide_code=True)
def the_checklist(checklist_stage, feeds_begun, feeds_panel, placement_begun, models_begun):
    input_pipeline.checklist(checklist_stage, feeds_panel, [feeds_begun, placement_begun, models_begun])
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** The same preprocessing in Python, which holds the lock: does the parallel map still help? No
    preprocessing at all, and a batch of 2,048: who waits now? A hundred thousand rows: how long until the first batch
    of a shuffle?
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("input_pipeline", input_pipeline.settings())
    feeds_stage, placement_stage, models_stage, checklist_stage = (
        Stage(shared_engine(), Store(), address) for _ in range(4)
    )
    return address, checklist_stage, feeds_stage, models_stage, placement_stage


if __name__ == "__main__":
    app.run()
