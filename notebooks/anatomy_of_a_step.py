import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="The anatomy of a step", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import anatomy_of_a_step as anatomy
    from lib.pages.lab import Lab


@app.cell(hide_code=True)
def title():
    lab = Lab("anatomy_of_a_step", step=anatomy.Step)
    lab.title(
        "Where does one training step go?",
        "One step multiplies a few small matrices. Around that, somebody writes a loop, calls a library, waits for an"
        " answer and fetches the next images. Each of these is measured here by an experiment of its own. Move a"
        " slider: does the arithmetic grow, or the rest?",
    )
    return (lab,)


@app.cell(hide_code=True)
def controls(lab):
    panel = lab.controls("step")
    return (panel,)


@app.cell(hide_code=True)
def the_step(lab, panel):
    lab.measure(panel, anatomy.tasks, anatomy.draw)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: which parts stay as long as they were? Those are the overhead, paid once a
    step whatever the step does. A network of 1,024 neurons: from where on is arithmetic the largest part by every
    library? There, and not before, faster hardware helps.
    """)
    return


if __name__ == "__main__":
    app.run()
