import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="In front of a class", css_file="../ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.site import desk as site
    from lib.ui.heading import plain_title
    from lib.ui.opened import opened


@app.cell(hide_code=True)
def title():
    plain_title(
        "teacher",
        "What does the class expect?",
        "Pupils who predict a result before seeing it learn more from it than those who only watch. Have the first"
        " notebook's sections ask first, see what the class says, show it to everyone, then talk about it.",
        opened("teacher", {}),
    )
    return


@app.cell(hide_code=True)
def switches():
    desk = site.desk()
    site.controls(desk)
    return (desk,)


@app.cell(hide_code=True)
def guesses_prose(desk):
    mo.md("## What they guess") if desk is not None else None
    return


@app.cell(hide_code=True)
def guesses(desk):
    desk.watch_guesses() if desk is not None else None
    return


if __name__ == "__main__":
    app.run()
