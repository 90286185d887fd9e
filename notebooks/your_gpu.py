import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Your GPU", css_file="../lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.labs.your_gpu import YourGpu
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error


@app.cell(hide_code=True)
def title():
    lab = YourGpu()
    lab.title(
        "Is your own GPU slower?",
        "Nearly every laptop and phone has a GPU, and a browser can use it without CUDA. Here your browser trains the"
        " same network on your GPU and on your CPU, in turns, with the same operations. Which wins?",
    )
    return (lab,)


@app.cell(hide_code=True)
def in_your_browser(lab):
    yours = lab.controls("yours")
    lab.browser.show()
    return (yours,)


@app.cell(hide_code=True)
def class_question():
    mo.md(r"""
    ## Side by side

    Everyone who presses “Keep as a machine” on this page of this server gets a row here. A row holds the system, the
    browser, cores, the GPU's name as the browser reports it, and seconds: nothing personal.
    """)
    return


@app.cell(hide_code=True)
def side_by_side(lab, yours):
    lab.browser.follow(yours)
    return


@app.cell(hide_code=True)
def server_controls(lab):
    server = lab.controls("server")
    mo.md(r"""
    ## Against the server's libraries

    The server is the machine that runs this notebook: yours, or the one at the other end of a tunnel. Its libraries
    train the same network with the same batches; their times join the first table above.
    """)
    return (server,)


@app.cell(hide_code=True)
def beside_the_server(lab, server, yours):
    lab.work(server, *lab.browser.on_server(yours))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: which device wins at each end? Then wait for each operation instead of
    submitting many steps at once: how much of a step is launching?
    """)
    return


if __name__ == "__main__":
    app.run()
