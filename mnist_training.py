import marimo

__generated_with = "0.25.2"
app = marimo.App(width="full", app_title="Why is my GPU slower?", css_file="lib/ui/page.css")

with app.setup(hide_code=True):
    import marimo as mo

    try:
        from lib.model.backends.registry import Runtime
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this is one file of a project: get all of it, and call `make edit` there") from error
    from lib.model.data.mnist import recognised
    from lib.sweeps.workers.engine import shared_engine

    # Where nothing can be kept yet, before the heavier imports: the worker imports its own library meanwhile.
    if recognised() is None:
        shared_engine().warm(Runtime())

    from lib.sweeps.experiments.lines import batch_sizes_of, networks_of, rates_between
    from lib.sweeps.experiments.mnist_training import Experiment, every_runtime
    from lib.labs import mnist_training as first
    from lib.model.spec import Network, Training
    from lib.ui.views.conclusions import best_network, best_rate, fastest_backend, first_to_the_target
    from lib.ui.views.mnist_training import accuracy_by_cost, accuracy_by_epoch, accuracy_by_rate, accuracy_by_seconds
    from lib.ui.views.mnist_training import backend_dots, loss_by_step, seconds_by_batch_size
    from lib.sweeps.workers.messages import Item as Job


@app.cell(hide_code=True)
def title():
    lab = first.FirstLab()
    reset = lab.reset
    lab.head()
    return lab, reset


@app.cell(hide_code=True)
def own_data_controls(lab, reset):
    data, net = lab.own.panel(), lab.controls("net", reset())
    return data, net


@app.cell(hide_code=True)
def why_slower(lab, net):
    lab.work(net, *lab.why)
    return


@app.cell(hide_code=True)
def own_data(data, lab):
    lab.own.read(data)
    return


@app.cell(hide_code=True)
def rate_controls(lab, reset):
    rate = lab.controls("rate", reset())
    mo.md(r"""
    ## 1 · How large a step?

    Each step moves every weight $w$ against its gradient: $w \leftarrow w - \eta \,\partial L/\partial w$. The learning
    rate $\eta$ sets how far: too small, and three epochs get nowhere; too large, and the loss jumps about.
    """)
    return (rate,)


@app.cell(hide_code=True)
def learning_rate(lab, rate):
    def rates(at):
        network, runtime = Network.parse(at.hidden), at.runtime
        trainings = [Training(network, one, at.size, at.epochs) for one in rates_between(*at.range, at.count)]
        return Experiment.by("learning rate", [Job(training, runtime) for training in trainings])

    lab.show(rate, rates, draw=[loss_by_step, accuracy_by_rate], say=best_rate)
    return


@app.cell(hide_code=True)
def size_controls(lab, reset):
    size = lab.controls("size", reset())
    mo.md(r"""
    ## 2 · How many images a step?

    A step on $B$ images pays its overhead once for all of them, so larger batches make faster epochs. But an epoch of
    $N$ images (48,000 in MNIST) then has only $N / B$ steps to learn in. What counts is the time to reach an accuracy,
    not the time per epoch.
    """)
    return (size,)


@app.cell(hide_code=True)
def batch_size(lab, size):
    def sizes(at):
        network, runtime = Network.parse(at.hidden), at.runtime
        trainings = [Training(network, at.rate, one, at.epochs) for one in batch_sizes_of(at.sizes)]
        return Experiment.by("batch size", [Job(training, runtime) for training in trainings], at.target)

    lab.show(size, sizes, draw=[accuracy_by_seconds, seconds_by_batch_size], say=first_to_the_target)
    return


@app.cell(hide_code=True)
def depth_controls(lab, reset):
    depth = lab.controls("depth", reset())
    mo.md(r"""
    ## 3 · How many layers?

    More and wider layers fit the data with more parameters, and cost more arithmetic per step. Are they worth it?
    """)
    return (depth,)


@app.cell(hide_code=True)
def hidden_layers(depth, lab):
    def networks(at):
        trainings = [Training(one, at.rate, at.size, at.epochs) for one in networks_of(at.networks, at.own)]
        return Experiment.by("hidden layers", [Job(training, at.runtime) for training in trainings])

    lab.show(depth, networks, draw=[accuracy_by_epoch, accuracy_by_cost], say=best_network)
    return


@app.cell(hide_code=True)
def backend_controls(lab, reset):
    backend = lab.controls("backend", reset())
    mo.md(r"""
    ## 4 · Which library?

    The same parameters, the same batches, the same mathematics, in every library that can run here. They differ in
    what happens *between* the products: how often Python has to dispatch the next operation, and what each call costs.
    """)
    return (backend,)


@app.cell(hide_code=True)
def which_backend(backend, lab):
    def backends(at):
        training = Training(Network.parse(at.hidden), at.rate, at.size, at.epochs)
        return Experiment.by("backend", [Job(training, runtime) for runtime in every_runtime()])

    lab.show(backend, backends, draw=[backend_dots], say=fastest_backend, below=lab.what_is_missing)
    return


@app.cell(hide_code=True)
def search_controls(lab, reset):
    search = lab.controls("search", reset())
    mo.md(r"""
    ## 5 · All of it at once?

    Learning rate, batch size, width and depth interact, so tuning them one after another misses the best setting. A
    random search draws all four at once and trains the fastest way this machine has. Which setting is best?
    """)
    return (search,)


@app.cell(hide_code=True)
def search_all(lab, search):
    lab.work(search, *lab.search)
    return


@app.cell(hide_code=True)
def look_inside(lab):
    prose = r"""
    ## 6 · Look inside

    The best network of the experiment that finished last. If it knows MNIST, draw a digit: see its ten probabilities.
    """
    lab.inside.show(mo.md(prose))
    return


@app.cell(hide_code=True)
def draw_a_digit(lab):
    mo.ui.anywidget(lab.inside.digit)
    return


@app.cell(hide_code=True)
def your_controls(lab, reset):
    your = lab.controls("your", reset())
    mo.md(r"""
    ## 7 · Your own experiment

    The cell below says in ten lines what to train, what to draw and what to conclude. In the editor (`make edit`),
    show its code and change it: start with the networks it trains.
    """)
    return (your,)


@app.cell
def your_experiment(lab, your):
    def wide_or_deep(at):
        networks = [Network((256,)), Network((64, 64))]
        trainings = [Training(network, at.rate, at.size, at.epochs) for network in networks]
        return Experiment.by("hidden layers", [Job(training, at.runtime) for training in trainings])

    lab.show(your, wide_or_deep, draw=[accuracy_by_epoch, accuracy_by_cost], say=best_network)
    return


if __name__ == "__main__":
    app.run()
