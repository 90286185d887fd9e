import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Operations", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.sweeps.experiments.single_operations import first_uses, fusions, overlaps, products, sines, transfers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error
    from lib.labs.operations_and_feeds import feeds, operations


@app.cell(hide_code=True)
def title():
    lab = feeds.OperationsAndFeeds()
    lab.title(
        "From which size on does a graphics card pay, and what keeps it waiting?",
        "First, operations by themselves: small ones are nearly all overhead, and large ones run at the speed of the"
        " arithmetic or of the memory. Then the images that feed a step: a faster device helps only while it has"
        " something to do.",
    )
    return (lab,)


@app.cell(hide_code=True)
def panels(lab):
    product, sine, transfer, first, fusion, overlap, feed, placement, models, advice = map(
        lab.controls, lab.page.sections
    )
    return product, sine, transfer, first, fusion, overlap, feed, placement, models, advice


@app.cell(hide_code=True)
def product_question():
    mo.md(r"""
    ## 1 · A product of two matrices

    Two $n \times n$ matrices take $2n^3$ floating-point operations. Up to some size, a call costs the same whatever
    $n$ is; from there on the time grows with the arithmetic. A clock that stops before the result is there shows
    only the first of the two. A size that would not fit into memory, or take too long, is drawn hollow: it is
    predicted, and nothing was allocated for it.
    """)
    return


@app.cell(hide_code=True)
def the_products(lab, product):
    lab.time(product, lambda at, by: products(by, at.largest, at.precision), operations.draw_products)
    return


@app.cell(hide_code=True)
def sine_question():
    mo.md(r"""
    ## 2 · A sine of a sine of a sine

    Each sine by itself reads all elements from memory and writes them back: $d$ sines, $d$ passes. Compiled into one
    program, an element is read once, goes through all sines in a register, and is written once. That helps as far as
    the passes were what took the time.
    """)
    return


@app.cell(hide_code=True)
def the_sines(lab, sine):
    lab.time(sine, lambda at, by: sines(by, at.largest, at.depth), operations.draw_sines)
    return


@app.cell(hide_code=True)
def transfer_question():
    mo.md(r"""
    ## 3 · Moving the data

    A transfer costs a latency, whatever its size, and a time for each byte. A card reads pageable memory through a
    buffer of the driver, and pinned memory by itself. On a processor, the library computes in the memory where the
    data already lies: copying it is a choice, and an alias costs nothing per byte.
    """)
    return


@app.cell(hide_code=True)
def the_transfers(lab, transfer):
    lab.time(transfer, lambda at, by: transfers(by, at.largest), operations.draw_transfers)
    return


@app.cell(hide_code=True)
def first_question():
    mo.md(r"""
    ## 4 · The first use

    What is slow the first time need not be slow: Python starts, the library is imported, the device is set up, a
    kernel is loaded, a program is compiled. Each library does it three times here, in processes of its own, without
    the programs that earlier ones have compiled.
    """)
    return


@app.cell(hide_code=True)
def the_first_use(first, lab):
    lab.time(first, lambda at, by: first_uses(by, at.size), operations.draw_first_uses)
    return


@app.cell(hide_code=True)
def fusion_question():
    mo.md(r"""
    ## 5 · What a compiler leaves

    XLA reads a program as a list of operations, fuses those that follow one another element by element, and leaves
    products to a library. What remains are kernels, and each has to be launched.
    """)
    return


@app.cell(hide_code=True)
def the_fusions(fusion, lab):
    lab.time(fusion, lambda at, by: fusions(by, at.size, at.depth), operations.draw_fusions)
    return


@app.cell(hide_code=True)
def overlap_question():
    mo.md(r"""
    ## 6 · Transfers while it computes

    A card can bring data there, compute, and bring data back at the same time; so can three threads of a processor.
    It takes pieces: with a single piece, each stage needs all that the stage before made.
    """)
    return


@app.cell(hide_code=True)
def the_overlap(lab, overlap):
    lab.time(overlap, lambda at, by: overlaps(by, at.size, at.depth, at.pieces), operations.draw_overlaps)
    return


@app.cell(hide_code=True)
def feeds_question():
    mo.md(r"""
    ## 7 · What feeds the step?

    Here the same images reach the same step in many ways. If each batch takes the data set $D$ seconds and the step
    $S$, one after the other they take $D + S$; with the next batch made ahead while the step runs, at best
    $\max(D, S)$; with $c$ cores at work on the batches, at best $\max(D / c, S)$; and cached, $S$ alone. Which of
    these is reached depends on the machine, on the library, and on whether the preprocessing holds Python's
    interpreter lock: if it does, more threads only take turns. Choose the feed that you use.
    """)
    return


@app.cell(hide_code=True)
def the_feeds(feed, lab):
    lab.work(feed, *feeds.by_feeds(lab.page.store))
    return


@app.cell(hide_code=True)
def placement_question():
    mo.md(r"""
    ## 8 · Where does each operation run?

    TensorFlow gives each operation to a device that has a kernel for it, and copies what lies elsewhere. This is read
    from the graphs that it really ran, after it had placed and fused them.
    """)
    return


@app.cell(hide_code=True)
def the_placement(lab, placement):
    lab.work(placement, *feeds.by_tensorflow(lab.page.store, "placement"))
    return


@app.cell(hide_code=True)
def models_question():
    mo.md(r"""
    ## 9 · What does creating a model take?

    One article clones a model on the CPU and then on the GPU in one process: whichever comes first also pays for
    starting the library. So here each model has a fresh process, and what is done again stands beside the first time.
    """)
    return


@app.cell(hide_code=True)
def the_models(lab, models):
    lab.work(models, *feeds.by_tensorflow(lab.page.store, "models"))
    return


@app.cell(hide_code=True)
def checklist_question():
    mo.md(r"""
    ## 10 · The articles' checklist

    What two articles advise, each beside what was measured above.
    """)
    return


@app.cell(hide_code=True)
def the_checklist(advice, feed, lab):
    lab.answer(advice, feeds.draw_checklist, feed)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Products with one thread instead of all: which sizes notice it? Then float64, and half precision:
    where does it pay to compute with fewer bits? The same preprocessing in Python, which holds the lock: does the
    parallel map still help? No preprocessing at all, and a batch of 2,048: who waits now? A hundred thousand rows: how
    long until the first batch of a shuffle?
    """)
    return


if __name__ == "__main__":
    app.run()
