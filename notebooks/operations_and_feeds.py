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
    from lib.ui.lab import Lab


@app.cell(hide_code=True)
def title():
    lab = Lab("operations_and_feeds", [feeds.WhenMeasured()], **feeds.PANELS)
    lab.title(
        "At what size does a GPU pay off, and what keeps it waiting?",
        "First, single operations: small ones are nearly all overhead; large ones run as fast as arithmetic or memory"
        " allows. Then the images that feed a step: a faster device helps only while it has something to do.",
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

    The product of two $n \times n$ matrices takes $2n^3$ floating-point operations. Below some size, a call costs the
    same whatever $n$ is; above, its time grows with the arithmetic. A clock that stops before the result is ready sees
    only the call. Sizes that would exceed the memory or take too long are predicted, and drawn hollow.
    """)
    return


@app.cell(hide_code=True)
def the_products(lab, product):
    lab.work(
        product,
        operations.asked(lab.page.store, lambda at, by: products(by, at.largest, at.precision)),
        operations.draw_products,
    )
    return


@app.cell(hide_code=True)
def sine_question():
    mo.md(r"""
    ## 2 · A sine of a sine of a sine

    One at a time, each sine reads all elements from memory and writes them back: $d$ sines, $d$ passes. Compiled into
    one program, each element is read once, passes through all sines in a register, and is written once. That helps
    wherever the passes took the time.
    """)
    return


@app.cell(hide_code=True)
def the_sines(lab, sine):
    lab.work(
        sine,
        operations.asked(lab.page.store, lambda at, by: sines(by, at.largest, at.depth)),
        operations.draw_sines,
    )
    return


@app.cell(hide_code=True)
def transfer_question():
    mo.md(r"""
    ## 3 · Moving the data

    A transfer costs a fixed latency plus a time per byte. A GPU reads pageable memory through the driver's buffer, and
    pinned memory directly. On a CPU, the library computes where the data already is: copying is optional, and an alias
    costs nothing per byte.
    """)
    return


@app.cell(hide_code=True)
def the_transfers(lab, transfer):
    lab.work(
        transfer,
        operations.asked(lab.page.store, lambda at, by: transfers(by, at.largest)),
        operations.draw_transfers,
    )
    return


@app.cell(hide_code=True)
def first_question():
    mo.md(r"""
    ## 4 · The first use

    The first call says little about the others: Python starts, imports the library, sets up the device, loads a kernel
    and compiles a program. Each library does this three times here, each time in a fresh process with an empty
    compilation cache.
    """)
    return


@app.cell(hide_code=True)
def the_first_use(first, lab):
    lab.work(
        first,
        operations.asked(lab.page.store, lambda at, by: first_uses(by, at.size)),
        operations.draw_first_uses,
    )
    return


@app.cell(hide_code=True)
def fusion_question():
    mo.md(r"""
    ## 5 · What a compiler leaves

    XLA reads a program as a list of operations, fuses consecutive elementwise ones, and leaves products to a library.
    What remains are kernels, and each must be launched.
    """)
    return


@app.cell(hide_code=True)
def the_fusions(fusion, lab):
    lab.work(
        fusion,
        operations.asked(lab.page.store, lambda at, by: fusions(by, at.size, at.depth)),
        operations.draw_fusions,
    )
    return


@app.cell(hide_code=True)
def overlap_question():
    mo.md(r"""
    ## 6 · Transfers while it computes

    A GPU can copy data in, compute, and copy results out at the same time; so can three CPU threads. That takes more
    than one piece: with a single piece, each stage waits for all of the previous one.
    """)
    return


@app.cell(hide_code=True)
def the_overlap(lab, overlap):
    lab.work(
        overlap,
        operations.asked(lab.page.store, lambda at, by: overlaps(by, at.size, at.depth, at.pieces)),
        operations.draw_overlaps,
    )
    return


@app.cell(hide_code=True)
def feeds_question():
    mo.md(r"""
    ## 7 · What feeds the step?

    The same images reach the same step in many ways. If preparing a batch takes $D$ seconds and the step $S$, then in
    sequence they take $D + S$; with prefetching, at best $\max(D, S)$; with $c$ cores preparing batches, at best
    $\max(D / c, S)$; and with cached batches, $S$ alone. How close you get depends on the machine, on the library, and
    on whether the preprocessing holds Python's interpreter lock: if it does, more threads only take turns. Choose the
    feed that you use.
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

    TensorFlow gives each operation to a device that has a kernel for it, and copies inputs from other devices. The
    table comes from the graphs that it really ran, after placement and fusion.
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
    starting the library. Here each model gets a fresh process, and repeated calls are shown next to the first.
    """)
    return


@app.cell(hide_code=True)
def the_models(lab, models):
    lab.work(models, *feeds.by_tensorflow(lab.page.store, "model"))
    return


@app.cell(hide_code=True)
def checklist_question():
    mo.md(r"""
    ## 10 · The articles' checklist

    The advice of two articles, each next to the measurements above.
    """)
    return


@app.cell(hide_code=True)
def the_checklist(advice, feed, lab):
    lab.answer(advice, feeds.draw_checklist, feed)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Products with one thread instead of all: which sizes get slower? Float64, then half precision: where
    do fewer bits pay off? The same preprocessing in Python, which holds the lock: does the parallel map still help? No
    preprocessing and a batch of 2,048: what waits now? A hundred thousand rows: how long until a shuffle's first batch?
    """)
    return


if __name__ == "__main__":
    app.run()
