import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Do the articles' claims hold?", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import claims, mnist_training
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.pages.notebooks import link
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "claims",
        "Do the articles' claims hold?",
        "Two articles say why a small network trains faster on a processor. The reason that they give, overhead, holds;"
        " many of their figures do not. Here is each beside the one that this machine gives, and, where an article"
        " contradicts itself, the arithmetic.",
        address,
    )
    return


@app.cell(hide_code=True)
def buttons(stage):
    panel = claims.buttons(stage)
    mo.hstack(list(panel.elements.values()), justify="start", gap=0.5)
    return (panel,)


@app.cell(hide_code=True)
def the_claims(panel, stage):
    claims.show(stage, panel)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(rf"""
    **Try next.** {link("which_library")} measures every batch size by every backend; {link("inside_a_step")} takes one
    step apart, and shows how such figures go wrong.
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("claims", {})
    stage = Stage(shared_engine(), Store())
    return address, stage


if __name__ == "__main__":
    app.run()
