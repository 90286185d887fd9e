"""The worksheet of the class site, to print: a sheet for each experiment of the first notebook and each other one."""

from starlette.responses import HTMLResponse

from lib.experiments.mnist_training import Experiment
from lib.pages import mnist_training as page
from lib.pages.notebooks import FIRST, NOTEBOOKS
from lib.pages.plain_page import plain_page
from lib.views import worksheet as view
from lib.views.worksheet import Sheet


def worksheet() -> HTMLResponse:
    """The whole page: what is trained in each experiment is what its controls say before anybody has moved one."""
    sheets = [*_experiments(), *_notebooks()]
    lead = (
        "A page of A4 for each experiment: predict, run it, write down what happened, and ask why. Print what you need"
        f" of the {len(sheets)} pages; this paragraph stays on the screen."
    )
    top = f'<div class="screen"><h1>Worksheet</h1><p class="lead">{lead} <a href="/">All notebooks</a></p></div>'
    return plain_page("Worksheet", top + view.as_html(sheets), wide=True)


def _experiments() -> list[Sheet]:
    return [view.sheet(asked, FIRST.path, _usual(name).labels) for name, asked in view.QUESTIONS.items()]


def _usual(name: str) -> Experiment:
    """An experiment as the page opens with it."""
    settings = page.settings()
    values = {key.partition(".")[2]: one.usual for key, one in settings.items() if key.startswith(f"{name}.")}
    return page.EXPERIMENTS[name](values)


def _notebooks() -> list[Sheet]:
    others = [one for one in NOTEBOOKS if one is not FIRST]
    return [Sheet(one.title, one.question, one.path, "What do you expect, and why?", ask=view.ANY) for one in others]
