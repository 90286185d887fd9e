import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Do the articles' claims hold?", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.labs import claims
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error
    from lib.ui.lab import Lab
    from lib.ui.notebooks import link


@app.cell(hide_code=True)
def title():
    lab = Lab("claims", claims=claims.Claims)
    lab.title(
        "Do the articles' claims hold?",
        "Two articles explain why a small network trains faster on a CPU. Their reason, overhead, holds; many of their"
        " figures do not. Each claim stands next to this machine's own figure, or, where an article contradicts itself,"
        " next to the arithmetic.",
    )
    return (lab,)


@app.cell(hide_code=True)
def controls(lab):
    panel = lab.controls("claims")
    return (panel,)


@app.cell(hide_code=True)
def the_claims(lab, panel):
    lab.work(panel, claims.measure(lab.page.store), claims.draw)
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(rf"""
    **Try next.** {link("which_library")} times every library at every batch size; {link("inside_a_step")} takes one
    step apart and shows how such measurements go wrong.
    """)
    return


if __name__ == "__main__":
    app.run()
