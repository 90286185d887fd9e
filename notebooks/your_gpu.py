import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Your own GPU", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import mnist_training, your_gpu
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "your_gpu",
        "Is your own GPU slower?",
        "Nearly every laptop and phone has a GPU, and a browser reaches it without CUDA. Here your browser trains the"
        " same network on your GPU and on your processor, in turns, by the same operations. Which of them wins?",
        address,
    )
    return


@app.cell(hide_code=True)
def in_your_browser(address, browser):
    panel = your_gpu.panel(address, browser)
    your_gpu.show(browser, mnist_training.controls(panel))
    return (panel,)


@app.cell(hide_code=True)
def asked(browser, panel):
    your_gpu.ask(browser, panel)
    return


@app.cell(hide_code=True)
def class_question():
    mo.md(r"""
    ## Side by side

    Whoever opens this page on this server and presses “Keep as a machine” has a row here, also on a second equal
    laptop. What is kept is system, browser, cores, what the browser says of its GPU, and seconds: nothing personal.
    """)
    return


@app.cell(hide_code=True)
def side_by_side(browser, class_stage, panel):
    your_gpu.side_by_side(class_stage, browser, panel)
    return


@app.cell(hide_code=True)
def server_question(stage):
    server_panel = your_gpu.server_panel(stage)
    mo.md(r"""
    ## Beside the server's libraries

    The server is the machine that this notebook runs on: yours, or the one at the other end of a tunnel. Its libraries
    train the same network with the same batches; what they take stands in the first table above.
    """)
    return (server_panel,)


@app.cell(hide_code=True)
def beside_the_server(browser, panel, server_panel, stage):
    your_gpu.on_server(stage, browser, server_panel, panel, mnist_training.controls(server_panel))
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Batch size 1, then 4,096: who wins at which end? Then wait for each operation instead of submitting
    many steps at once: how much of a step is only launching?
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("your_gpu", your_gpu.settings())
    stage = Stage(shared_engine(), Store())
    class_stage = Stage(stage.engine, stage.store, stage.viewer)
    browser = your_gpu.InBrowser(stage.store, stage.viewer)
    return address, browser, class_stage, stage


if __name__ == "__main__":
    app.run()
