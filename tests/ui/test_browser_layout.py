"""Layout in a real browser: charts use their width, labels do not overlap, and nothing moves during a run."""

import pytest

from benchmarks.browser import begin_all
from tests.browser import DESK, MARKS, PHONE, move, open_page, wait_over

pytestmark = [*MARKS, pytest.mark.release, pytest.mark.timeout(400)]

# Settings that crowd the charts: long labels, close rates of which some diverge, small and large batches.
CROWDED = (
    "?rate.range=0.1,10&rate.count=8&rate.size=512&rate.epochs=2&rate.hidden=32&size.sizes=256,512,1024,2048,4096&size.epochs=2"
    "&depth.networks=128,256,128→64,256→128→64&depth.size=1024&depth.epochs=2&backend.hidden=128&backend.size=2048&backend.epochs=2"
)

# For each chart: its figure's and its plot's boxes, and the boxes of all visible texts.
CHARTS = """() => [...document.querySelectorAll('.lab')].slice(0, 4)
  .flatMap((lab, nth) => [...lab.querySelectorAll('.lab-figure')].map(figure => {
    const drawn = figure.querySelector('marimo-mime-renderer')?.shadowRoot?.querySelector('svg');
    const svg = drawn ?? document.createElement('svg');
    const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] };
    const texts = kind => [...svg.querySelectorAll(`g.role-${kind} text`)]
        .filter(e => e.textContent && getComputedStyle(e).opacity !== '0' && e.getAttribute('opacity') !== '0')
        .map(e => ({text: e.textContent, box: box(e)}));
    return {name: `${nth + 1}: ${figure.querySelector('figcaption').innerText}`, cell: box(figure), svg: box(svg),
            plot: box(svg.querySelector('g.role-frame.root > g > path.background') ?? svg),
            ticks: texts('axis-label'), labels: texts('mark')} }))"""
TWO_BACKENDS = f"() => ({CHARTS})()[6]?.labels.filter(one => /^[0-9]/.test(one.text)).length >= 2"  # are timed


@pytest.fixture(scope="module")
def full_server(full_site):
    """With all installed libraries: Keras' backends have the longest names and the longest published times."""
    return full_site.at("mnist_training.py")


def overlap(one, other):
    """Whether two text boxes (left, top, right, bottom) overlap by more than their line spacing."""
    return all(min(one[i + 2], other[i + 2]) - max(one[i], other[i]) > 2 for i in (0, 1))


def crossings(some, others):
    return [(a["text"], b["text"]) for a in some for b in others if a is not b and overlap(a["box"], b["box"])]


def too_narrow(charts, least):
    widths = {one["name"]: [one[box][2] - one[box][0] for box in ("plot", "cell")] for one in charts}
    return [f"{name}: {plot / cell:.0%}" for name, (plot, cell) in widths.items() if plot < least[name[0]] * cell]


def test_charts_use_their_width_and_texts_do_not_overlap(page, full_server):
    open_page(page, full_server, CROWDED)
    begin_all(page, 5)
    for nth in range(3):
        wait_over(page, nth, 120_000)
    page.wait_for_function(TWO_BACKENDS, timeout=90_000)
    # The widest label: in exp. 3 “256→128→64”, in exp. 4 the longest name of a backend.
    for size, least in (
        (DESK, {"1": 0.64, "2": 0.52, "3": 0.48, "4": 0.7}),
        (PHONE, {"1": 0.7, "2": 0.62, "3": 0.6, "4": 0.45}),
    ):
        page.set_viewport_size(size)
        charts = page.evaluate(CHARTS)
        for _ in range(40):  # they are redrawn at the new width, later on a busy machine
            if too_narrow(charts, least):
                page.wait_for_timeout(500)
                charts = page.evaluate(CHARTS)
        assert too_narrow(charts, least) == [], f"at {size['width']}"
        assert len(charts) == 7
        for chart in charts:
            name, cell = f"{chart['name']} at {size['width']}", chart["cell"]
            ticks, labels = chart["ticks"], chart["labels"]
            assert len(ticks) >= 5, name
            assert crossings(ticks, ticks) == [], name
            assert crossings(labels, labels) == [], name
            assert crossings(labels, ticks) == [], name
            cut = [text["text"] for text in ticks + labels if text["box"][2] > cell[2] or text["box"][0] < cell[0]]
            assert cut == [], f"{name}: cut off"
            assert chart["svg"][3] <= chart["cell"][3], f"{name}: higher than its place"


def test_published_figures_do_not_stretch_the_axis(page, full_server):
    """With 11.31 s published and tenths of a second measured, the measured dots still have room."""
    open_page(page, full_server, CROWDED.replace("backend.size=2048", "backend.size=32"))
    begin_all(page, 5)
    page.wait_for_function(TWO_BACKENDS, timeout=120_000)
    dots = page.evaluate(CHARTS)[6]
    left, _, right, _ = dots["plot"]
    ticks = [tick["text"] for tick in dots["ticks"] if tick["text"][0].isdigit()]
    assert ticks[-2:] == ["10", "100"], "a step of the axis is a factor of ten"
    (farthest,) = [text["box"] for text in dots["labels"] if text["text"] == "published 11.31 s"]
    assert farthest[2] < left + 0.75 * (right - left)
    places = sorted((text["box"][0] - left) / (right - left) for text in dots["labels"] if text["text"][0].isdigit())
    assert places[0] > 0.05, "the quickest is not at the edge"


# Positions from the page's top, and the contents of the state line; `display: contents` leaves an element no position.
PLACES = """() => Object.fromEntries([...document.querySelectorAll('.lab')].slice(0, 4).flatMap((lab, nth) =>
    ['.lab-controls', '.lab-result', '.lab-charts', '.lab-figure:last-child', '.lab-state', '.lab-state b',
     '.lab-state span', '.lab-sentence', '.lab-more'].map(name => [`${nth + 1} ${name}`, lab.querySelector(name)])
    .filter(([, e]) => e?.checkVisibility()).map(([name, e]) => {
        const b = e.getBoundingClientRect(), top = document.querySelector('.lab-title').getBoundingClientRect().top;
        const height = name.endsWith('span') ? 0 : b.height;
        return [name, [b.left, b.top - top, height].map(Math.round)] })))"""
WATCH = f"""() => {{ window.seen = []; window.states = new Set(); const places = {PLACES};
    const look = () => {{ seen.push(places());
                          document.querySelectorAll('.lab-state b').forEach(e => states.add(e.innerText));
                          requestAnimationFrame(look) }}; look() }}"""


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desktop", "phone"])
def test_the_layout_does_not_shift_between_runs(page, server, size):
    page.set_viewport_size(size)
    page.goto(
        f"{server}/?rate.size=256&rate.epochs=2&rate.hidden={size['width'] // 40}&size.epochs=1&size.sizes=256,4096"
        "&depth.epochs=1&depth.networks=128,256&depth.size=1024&backend.hidden=16&backend.size=2048&backend.epochs=2"
    )
    begin_all(page, 5)
    page.wait_for_timeout(500)  # fonts and controls are drawn
    page.evaluate(WATCH)
    for nth in range(3):  # the fourth is watched too, but its libraries start slowly
        wait_over(page, nth, 120_000)
    move(page, "Epochs")
    page.wait_for_function("() => location.search.includes('rate.epochs=3')", timeout=10_000)
    page.wait_for_function(
        "() => document.querySelector('.lab .lab-sentence').innerText.includes('3 epochs')", timeout=60_000
    )
    page.wait_for_timeout(300)
    seen = page.evaluate("seen")
    assert {"Training", "Done"} <= set(page.evaluate("[...states]")), "runs were seen"
    moved = {
        name: sorted({tuple(places[name]) for places in seen if name in places})
        for name in seen[-1]
        if len({tuple(places[name]) for places in seen if name in places}) > 1
    }
    assert moved == {}, "left, top, height"
