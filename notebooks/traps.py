import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="How to mistime a training step", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import traps
    from lib.pages.lab import Lab


@app.cell(hide_code=True)
def title():
    lab = Lab("traps", traps=traps.Traps)
    lab.title(
        "How wrong can a stopwatch be?",
        "One training step, one machine, one program, and six honest-looking ways to time it wrongly. Each stands"
        " beside the right one, both measured now.",
    )
    return (lab,)


@app.cell(hide_code=True)
def controls(lab):
    panel = lab.controls("traps")
    return (panel,)


@app.cell(hide_code=True)
def the_traps(lab, panel):
    lab.measure(panel, traps.tasks, traps.draw)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, where a step is shortest: which mistakes grow? Batch size 4,096: which ones vanish?
    Where the device may be one of WebGPU: a submission returns at once, whatever it asks for.
    """)
    return


if __name__ == "__main__":
    app.run()
