import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Single operations", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import single_operations, mnist_training
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "single_operations",
        "From which size on does a graphics card pay?",
        "One operation by itself: a product of matrices, a few sines, a copy. Small ones are nearly all overhead, and"
        " large ones run at the speed of the arithmetic or of the memory. Where is the border, and what moves it?",
        address,
    )
    return


@app.cell(hide_code=True)
def product_question(address, product_stage):
    product_panel = single_operations.panel("product", address, product_stage)
    mo.md(r"""
    ## 1 · A product of two matrices

    Two $n \times n$ matrices take $2n^3$ floating-point operations. Up to some size, a call costs the same whatever
    $n$ is; from there on the time grows with the arithmetic. A clock that stops before the result is there shows
    only the first of the two. A size that would not fit into memory, or take too long, is drawn hollow: it is
    predicted, and nothing was allocated for it.
    """)
    return (product_panel,)


@app.cell(hide_code=True)
def the_products(product_panel, product_stage):
    single_operations.show("product", product_stage, product_panel, mnist_training.controls(product_panel))
    return


@app.cell(hide_code=True)
def sine_question(address, sine_stage):
    sine_panel = single_operations.panel("sine", address, sine_stage)
    mo.md(r"""
    ## 2 · A sine of a sine of a sine

    Each sine by itself reads all elements from memory and writes them back: $d$ sines, $d$ passes. Compiled into one
    program, an element is read once, goes through all sines in a register, and is written once. That helps as far as
    the passes were what took the time.
    """)
    return (sine_panel,)


@app.cell(hide_code=True)
def the_sines(sine_panel, sine_stage):
    single_operations.show("sine", sine_stage, sine_panel, mnist_training.controls(sine_panel))
    return


@app.cell(hide_code=True)
def transfer_question(address, transfer_stage):
    transfer_panel = single_operations.panel("transfer", address, transfer_stage)
    mo.md(r"""
    ## 3 · Moving the data

    A transfer costs a latency, whatever its size, and a time for each byte. A card reads pageable memory through a
    buffer of the driver, and pinned memory by itself. On a processor, the library computes in the memory where the
    data lies already: to copy it is a choice, and an alias costs nothing for each byte.
    """)
    return (transfer_panel,)


@app.cell(hide_code=True)
def the_transfers(transfer_panel, transfer_stage):
    single_operations.show("transfer", transfer_stage, transfer_panel, mnist_training.controls(transfer_panel))
    return


@app.cell(hide_code=True)
def first_question(address, first_stage):
    first_panel = single_operations.panel("first", address, first_stage)
    mo.md(r"""
    ## 4 · The first use

    What is slow the first time need not be slow: Python starts, the library is imported, the device is set up, a
    kernel is loaded, a program is compiled. Each library does it three times here, in processes of its own, without
    the programs that earlier ones have compiled.
    """)
    return (first_panel,)


@app.cell(hide_code=True)
def the_first_use(first_panel, first_stage):
    single_operations.show("first", first_stage, first_panel, mnist_training.controls(first_panel))
    return


@app.cell(hide_code=True)
def fusion_question(address, fusion_stage):
    fusion_panel = single_operations.panel("fusion", address, fusion_stage)
    mo.md(r"""
    ## 5 · What a compiler leaves

    XLA reads a program as a list of operations, fuses those that follow one another element by element, and leaves
    products to a library. What remains are kernels, and each has to be launched.
    """)
    return (fusion_panel,)


@app.cell(hide_code=True)
def the_fusions(fusion_panel, fusion_stage):
    single_operations.show("fusion", fusion_stage, fusion_panel, mnist_training.controls(fusion_panel))
    return


@app.cell(hide_code=True)
def overlap_question(address, overlap_stage):
    overlap_panel = single_operations.panel("overlap", address, overlap_stage)
    mo.md(r"""
    ## 6 · Transfers while it computes

    A card can bring data there, compute, and bring data back at the same time; so can three threads of a processor.
    It takes pieces: of one piece alone, each stage needs all that the stage before made.
    """)
    return (overlap_panel,)


@app.cell(hide_code=True)
def the_overlap(overlap_panel, overlap_stage):
    single_operations.show("overlap", overlap_stage, overlap_panel, mnist_training.controls(overlap_panel))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** One thread instead of all: which sizes notice it? Then float64, and half precision: where does it
    pay to compute with fewer bits?
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("single_operations", single_operations.settings())
    product_stage, sine_stage, transfer_stage, first_stage, fusion_stage, overlap_stage = (
        Stage(shared_engine(), Store(), address) for _ in range(6)
    )
    return address, first_stage, fusion_stage, overlap_stage, product_stage, sine_stage, transfer_stage


if __name__ == "__main__":
    app.run()
