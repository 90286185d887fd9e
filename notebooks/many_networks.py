import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Many networks", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.labs import many_networks as networks
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error
    from lib.ui.lab import Lab


@app.cell(hide_code=True)
def title():
    panels = {"compare": networks.ArticleSweep, "count": networks.Saturation, "mixed": networks.MixedWidths}
    lab = Lab("many_networks", **panels)
    lab.title(
        "How many networks can be trained at once?",
        "You rarely train one network: you try learning rates, widths, depths. These trainings are independent, so they"
        " can run side by side, in separate processes or as one program that multiplies all their matrices together."
        " Which pays off, and for how many networks?",
    )
    return (lab,)


@app.cell(hide_code=True)
def panels(lab):
    compare, count, mixed = map(lab.controls, lab.page.sections)
    return compare, count, mixed


@app.cell(hide_code=True)
def sweep_controls():
    mo.md(r"""
    ## 1 · The article's sweep

    The article trains five learning rates, 0.001 to 10, for ten epochs each: with Keras one after another, then in five
    processes, then with `vmap`. Here are these three and more, each timed from start to finish. The slider sets the
    epochs; a rate of 10 learns nothing, but is trained to the end all the same.
    """)
    return


@app.cell(hide_code=True)
def the_sweep(compare, lab):
    lab.work(compare, networks.time_sweep(lab.page.store), networks.draw_sweep)
    return


@app.cell(hide_code=True)
def count_controls():
    mo.md(r"""
    ## 2 · How many in one program?

    All networks in a program read the same images, so their first layers become one large product, and one call serves
    them all. The time per network falls until only arithmetic is left, or until the parameters outgrow the caches.
    """)
    return


@app.cell(hide_code=True)
def more_and_more(count, lab):
    lab.work(count, networks.time_saturation, networks.draw_saturation)
    return


@app.cell(hide_code=True)
def mixed_controls():
    mo.md(r"""
    ## 3 · Must they be alike?

    The article says that `vmap` needs networks of one shape. It does, but a narrow network can be padded with zeros to
    the width of the widest, and the zeros stay zero: ReLU passes no gradient at zero. The price is wasted arithmetic.
    """)
    return


@app.cell(hide_code=True)
def networks_that_differ(lab, mixed):
    lab.work(mixed, networks.time_mixed, networks.draw_mixed)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1 in section 2: nearly all of it is overhead, and sharing it pays most. Then 4,096, where
    little is left to share. In section 3: how different must the widths be before padding stops paying off? `sweep()`
    in `lib/sweeps/sweep.py` makes that choice for you, by a rule per device.
    """)
    return


if __name__ == "__main__":
    app.run()
