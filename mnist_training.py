import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Why is my GPU slower?", css_file="lib/pages/page.css")

with app.setup(hide_code=True):
    from functools import partial

    import marimo as mo

    from lib.backends.registry import Runtime
    from lib.data.mnist import recognised
    from lib.workers.engine import shared_engine

    # Where nothing can be kept yet, before the heavier imports: the worker imports its own library meanwhile.
    if recognised() is None:
        shared_engine().warm(Runtime())

    from lib.pages import (
        network_inside,
        own_data,
        predict_first,
        streaming,
        random_search as search_page,
        mnist_training as page,
    )
    from lib.pages.export_menu import ExportMenu
    from lib.pages.stage import Stage
    from lib.storage.store import Store
    from lib.pages.widgets import DrawDigit


@app.cell(hide_code=True)
def title(address, get_known, get_own, get_reset, page_tools):
    get_reset()
    page.title(address, *get_known(), page_tools, get_own())
    return


@app.cell(hide_code=True)
def own_data_panel(address, get_reset):
    get_reset()
    own_panel, chosen = own_data.panel(address), own_data.Chosen()
    return chosen, own_panel


@app.cell(hide_code=True)
def read_own_data(chosen, own_panel, own_stage, set_own):
    read_at_once = own_data.read(own_stage, own_panel, chosen, set_own)
    return (read_at_once,)


@app.cell(hide_code=True)
def which_data(get_own, read_at_once):
    own = own_data.now(get_own(), read_at_once)
    return (own,)


@app.cell(hide_code=True)
def rate_question(address, get_reset, rate_stage):
    get_reset()
    rate_panel = page.rate_panel(address, rate_stage)
    mo.md(r"""
    ## 1 · How large a step?

    Each training step moves every weight $w$ against its gradient: $w \leftarrow w - \eta \,\partial L/\partial w$.
    The learning rate $\eta$ is the length of that step. Too small, and three epochs get nowhere; too large, and the
    loss jumps about or stops being a number.
    """)
    return (rate_panel,)


@app.cell(hide_code=True)
def rate_guess(get_class, get_rate_asked, viewer):
    get_class()
    rate_form = predict_first.ask(viewer, get_rate_asked())
    return (rate_form,)


@app.cell(hide_code=True)
def rate_experiment(own, rate_form, rate_panel, rate_stage, set_best, set_known, store, viewer):
    streaming.show(
        rate_stage,
        lambda: page.rate_experiment(rate_panel.value, own),
        page.controls(rate_panel),
        asked=rate_panel.value["again"],
        pinned=page.pinned("rate", rate_panel.value, own),
        after=own_data.compared_with_mnist(rate_stage, own),
        on_done=page.remember(set_best),
        on_data=page.tell(set_known, store),
        first=predict_first.First(viewer, rate_form),
        unseen=own_data.trained_on_mnist_too(rate_stage, own, rate_panel),
    )
    return


@app.cell(hide_code=True)
def rate_after(class_stages, get_class, get_rate_asked, viewer):
    get_class()
    predict_first.after(class_stages[0], viewer, get_rate_asked())
    return


@app.cell(hide_code=True)
def size_question(address, get_reset, size_stage):
    get_reset()
    size_panel = page.size_panel(address, size_stage)
    mo.md(r"""
    ## 2 · How many images a step?

    A step on $B$ images pays its overhead once for all of them, so larger batches make faster epochs. But an epoch of
    $N$ images, 48,000 of MNIST, then has only $N / B$ steps to learn in. What counts is the time to an accuracy, not
    the time of an epoch.
    """)
    return (size_panel,)


@app.cell(hide_code=True)
def size_guess(get_class, get_size_asked, viewer):
    get_class()
    size_form = predict_first.ask(viewer, get_size_asked())
    return (size_form,)


@app.cell(hide_code=True)
def size_experiment(own, set_best, set_known, size_form, size_panel, size_stage, store, viewer):
    streaming.show(
        size_stage,
        lambda: page.size_experiment(size_panel.value, own),
        page.controls(size_panel),
        asked=size_panel.value["again"],
        pinned=page.pinned("size", size_panel.value, own),
        target=size_panel.value["target"],
        after=own_data.compared_with_mnist(size_stage, own, page.left_out(size_panel.value, own)),
        on_done=page.remember(set_best),
        on_data=page.tell(set_known, store),
        first=predict_first.First(viewer, size_form),
        unseen=own_data.trained_on_mnist_too(size_stage, own, size_panel),
    )
    return


@app.cell(hide_code=True)
def size_after(class_stages, get_class, get_size_asked, viewer):
    get_class()
    predict_first.after(class_stages[1], viewer, get_size_asked())
    return


@app.cell(hide_code=True)
def depth_question(address, depth_stage, get_reset):
    get_reset()
    depth_panel = page.depth_panel(address, depth_stage)
    mo.md(r"""
    ## 3 · How many layers?

    More and wider layers have more parameters to fit the data with, and more arithmetic in each step. Which of them
    are worth their seconds?
    """)
    return (depth_panel,)


@app.cell(hide_code=True)
def depth_guess(get_class, get_depth_asked, viewer):
    get_class()
    depth_form = predict_first.ask(viewer, get_depth_asked())
    return (depth_form,)


@app.cell(hide_code=True)
def depth_experiment(depth_form, depth_panel, depth_stage, own, set_best, set_known, store, viewer):
    streaming.show(
        depth_stage,
        lambda: page.depth_experiment(depth_panel.value, own),
        page.controls(depth_panel),
        asked=depth_panel.value["again"],
        pinned=page.pinned("depth", depth_panel.value, own),
        after=own_data.compared_with_mnist(depth_stage, own),
        on_done=page.remember(set_best),
        on_data=page.tell(set_known, store),
        first=predict_first.First(viewer, depth_form),
        unseen=own_data.trained_on_mnist_too(depth_stage, own, depth_panel),
    )
    return


@app.cell(hide_code=True)
def depth_after(class_stages, get_class, get_depth_asked, viewer):
    get_class()
    predict_first.after(class_stages[2], viewer, get_depth_asked())
    return


@app.cell(hide_code=True)
def backend_question(address, backend_stage, get_reset):
    get_reset()
    backend_panel = page.backend_panel(address, backend_stage)
    mo.md(r"""
    ## 4 · Which library?

    The same parameters, the same batches, the same mathematics, by every library that can run here. They differ in
    what happens *between* the products: how often Python is asked what to do next, and what each answer costs.
    """)
    return (backend_panel,)


@app.cell(hide_code=True)
def backend_guess(get_class, get_backend_asked, viewer):
    get_class()
    backend_form = predict_first.ask(viewer, get_backend_asked())
    return (backend_form,)


@app.cell(hide_code=True)
def backend_experiment(backend_form, backend_panel, backend_stage, own, set_known, store, viewer):
    streaming.show(
        backend_stage,
        lambda: page.backend_experiment(backend_panel.value, own),
        page.controls(backend_panel),
        asked=backend_panel.value["again"],
        pinned=page.pinned("backend", backend_panel.value, own),
        after=own_data.compared_with_mnist(backend_stage, own, partial(page.missing_backends, own=own)),
        on_done=page.remember(lambda _: None),
        on_data=page.tell(set_known, store),
        first=predict_first.First(viewer, backend_form),
        unseen=own_data.trained_on_mnist_too(backend_stage, own, backend_panel),
    )
    return


@app.cell(hide_code=True)
def backend_after(class_stages, get_class, get_backend_asked, viewer):
    get_class()
    predict_first.after(class_stages[3], viewer, get_backend_asked())
    return


@app.cell(hide_code=True)
def search_question(address, get_reset, search_stage):
    get_reset()
    search_panel = search_page.panel(address, search_stage)
    mo.md(r"""
    ## 5 · All of it at once?

    Rate, batch size, width and depth act on each other, so one cannot be chosen after the other. A random search
    draws settings from all of them, and they are trained in whatever way a few measured steps show to be quickest
    here. Which of these settings is best?
    """)
    return (search_panel,)


@app.cell(hide_code=True)
def random_search(own, search_panel, search_stage):
    search_page.show(search_stage, search_panel, page.controls(search_panel), own)
    return


@app.cell(hide_code=True)
def inside_prose():
    mo.md(r"""
    ## 6 · Look inside

    The best network of the experiment that finished last. If it knows MNIST, draw a digit: this page computes the ten
    probabilities again at every stroke.
    """)
    return


@app.cell(hide_code=True)
def look_inside(digit, get_best, inside_stage):
    network_inside.show(
        inside_stage,
        get_best(),
        partial(network_inside.drawn_for, digit),
        "The best network appears here once an experiment above is done and this section is in sight.",
    )
    return


@app.cell(hide_code=True)
def draw_a_digit(digit):
    mo.ui.anywidget(digit)
    return


@app.cell(hide_code=True)
def class_note(get_class, viewer):
    get_class()
    predict_first.note(viewer)
    return


@app.cell(hide_code=True)
def shared_state():
    address = page.opened(
        "mnist_training", page.settings() | search_page.settings() | own_data.settings() | predict_first.SETTING
    )
    store = Store()
    get_best, set_newest = page.state(None)
    digit = DrawDigit()
    set_best = page.once_seen(digit, set_newest)
    get_reset, set_reset = mo.state(0)
    get_known, set_known = page.state((shared_engine().known_facts(), store.trouble))
    get_class, set_class = mo.state(0)
    get_rate_asked, set_rate_asked = mo.state(None)
    get_size_asked, set_size_asked = mo.state(None)
    get_depth_asked, set_depth_asked = mo.state(None)
    get_backend_asked, set_backend_asked = mo.state(None)
    viewer = predict_first.Viewer(
        address,
        set_class,
        (set_rate_asked, set_size_asked, set_depth_asked, set_backend_asked),
    )
    rate_stage, size_stage, depth_stage, backend_stage, search_stage = (
        Stage(shared_engine(), store, address, ExportMenu()) for _ in range(5)
    )
    inside_stage, own_stage = (Stage(shared_engine(), store, address) for _ in range(2))
    class_stages = [Stage(shared_engine(), store, address) for _ in range(4)]
    get_own, set_own = mo.state(own_data.at_first(address))
    page_tools = page.tools(
        [rate_stage, size_stage, depth_stage, backend_stage, search_stage, inside_stage], address, set_reset
    )
    return (
        address,
        backend_stage,
        class_stages,
        depth_stage,
        digit,
        get_backend_asked,
        get_best,
        get_class,
        get_depth_asked,
        get_known,
        get_own,
        get_rate_asked,
        get_reset,
        get_size_asked,
        inside_stage,
        own_stage,
        page_tools,
        rate_stage,
        search_stage,
        set_best,
        set_known,
        set_own,
        size_stage,
        store,
        viewer,
    )


if __name__ == "__main__":
    app.run()
