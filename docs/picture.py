"""Updates the README's picture: the first screen of `make run`, from an empty cache, after all measurements.

    python -m docs.picture

Takes two minutes, and needs MNIST, Chromium and an otherwise idle machine.
"""

from benchmarks.browser import browser, free_port, fresh_cache, make_run, page_of, visitor, wait_until_all_over
from lib import ROOT

FILE = ROOT / "notebooks/mnist_training.png"


def main() -> None:
    with browser() as opened, fresh_cache() as cache, make_run(cache, free_port()) as address:
        with visitor(opened) as person, page_of(person, address) as page:
            page.set_viewport_size({"width": 1280, "height": 860})
            wait_until_all_over(page)
            page.screenshot(path=FILE)


if __name__ == "__main__":
    main()
