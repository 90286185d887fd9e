import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="When does a GPU win?", css_file="../lib/pages/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    from lib.pages import mnist_training, when_does_a_gpu_win
    from lib.workers.engine import shared_engine
    from lib.pages.stage import Stage
    from lib.storage.store import Store


@app.cell(hide_code=True)
def title(address):
    mnist_training.plain_title(
        "when_does_a_gpu_win",
        "When does a GPU win?",
        "The articles answer with a rule of thumb from machines that you do not have. Here your processor is calibrated"
        " while you read, cards are known by what was published of them and by their data sheets, and the border"
        " between them is predicted for every width and batch size, with its uncertainty. Dots and diamonds were"
        " measured, rings published; all else is predicted.",
        address,
    )
    return


@app.cell(hide_code=True)
def surface_question(address, win_stage):
    win_panel = when_does_a_gpu_win.panel("win", address, win_stage)
    mo.md(r"""
    ## 1 · Where is the border?

    A step takes as long as its calls, its launches, its bytes and its arithmetic together. A GPU has more of the last
    two and pays more for the first two, so it wins where the work of a step is large: wide layers, large batches.
    """)
    return (win_panel,)


@app.cell(hide_code=True)
def the_surface(live, win_panel, win_stage):
    when_does_a_gpu_win.show(win_stage, "win", {"win": win_panel}, live, mnist_training.controls(win_panel))
    return


@app.cell(hide_code=True)
def calibration_question(address, here_stage):
    here_panel = when_does_a_gpu_win.panel("here", address, here_stage)
    mo.md(r"""
    ## 2 · How well is this machine known?

    Steps of drawn networks are measured, and costs are fitted to them. Each step is then predicted from all others: the
    error that is left is what an interval is made of. What is measured is kept, and the next visit goes on with it.
    """)
    return (here_panel,)


@app.cell(hide_code=True)
def the_calibration(here_panel, here_stage):
    live = when_does_a_gpu_win.calibrate(here_stage, here_panel, mnist_training.controls(here_panel))
    return (live,)


@app.cell(hide_code=True)
def imagined_question(address, what_stage):
    what_panel = when_does_a_gpu_win.panel("what", address, what_stage)
    mo.md(r"""
    ## 3 · What if?

    A card that nobody built: begin with one that is known, and change what it costs, or how its library feeds it. The
    dotted line is where the border was.
    """)
    return (what_panel,)


@app.cell(hide_code=True)
def the_imagined_card(live, what_panel, what_stage, win_panel):
    when_does_a_gpu_win.show(
        what_stage, "what", {"win": win_panel, "what": what_panel}, live, mnist_training.controls(what_panel)
    )
    return


@app.cell(hide_code=True)
def move_question(address, move_stage):
    move_panel = when_does_a_gpu_win.panel("move", address, move_stage)
    mo.md(r"""
    ## 4 · Move the border yourself

    The card stays the same, and so does the arithmetic. Only how often the host has to say something changes.
    """)
    return (move_panel,)


@app.cell(hide_code=True)
def the_moved_border(live, move_panel, move_stage, win_panel):
    when_does_a_gpu_win.show(
        move_stage, "move", {"win": win_panel, "move": move_panel}, live, mnist_training.controls(move_panel)
    )
    return


@app.cell(hide_code=True)
def larger_question(address, larger_stage):
    larger_panel = when_does_a_gpu_win.panel("larger", address, larger_stage)
    mo.md(r"""
    ## 5 · Larger work

    The network that the second article proposes for a GPU, a small convolutional one, and ResNet-18. A step of the
    first two is measured here too; predictions know nothing of how a library multiplies for a convolution.
    """)
    return (larger_panel,)


@app.cell(hide_code=True)
def the_larger_work(larger_panel, larger_stage, live):
    when_does_a_gpu_win.show_larger(larger_stage, {"larger": larger_panel}, live, mnist_training.controls(larger_panel))
    return


@app.cell(hide_code=True)
def cost_question(address, cost_stage):
    cost_panel = when_does_a_gpu_win.panel("cost", address, cost_stage)
    mo.md(r"""
    ## 6 · What does it cost?

    Faster is not cheaper: an hour of each machine has its price, and a larger batch needs more epochs. The network is
    784→128→10.
    """)
    return (cost_panel,)


@app.cell(hide_code=True)
def the_cost(cost_panel, cost_stage, live):
    when_does_a_gpu_win.show(cost_stage, "cost", {"cost": cost_panel}, live, mnist_training.controls(cost_panel))
    return


@app.cell(hide_code=True)
def articles_question():
    mo.md(r"""
    ## 7 · Is that so?

    Every figure of the articles that is the time of a training step, with what is predicted for it; the worst first.
    """)
    return


@app.cell(hide_code=True)
def the_articles():
    when_does_a_gpu_win.articles()
    return


@app.cell(hide_code=True)
def what_next():
    mo.md(r"""
    **Try next.** Drive the GPU operation by operation: how wide must a network be then? Then by a compiled epoch with
    64 networks at once: what do they do to the border, and why does a processor not gain as much?
    """)
    return


@app.cell(hide_code=True)
def shared_state():
    address = mnist_training.opened("when_does_a_gpu_win", when_does_a_gpu_win.settings())
    win_stage, here_stage, what_stage, move_stage, larger_stage, cost_stage = (
        Stage(shared_engine(), Store(), address) for _ in range(6)
    )
    return address, cost_stage, here_stage, larger_stage, move_stage, what_stage, win_stage


if __name__ == "__main__":
    app.run()
