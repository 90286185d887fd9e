"""The notebooks and the links between them; one server serves them all."""

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lib.sweeps.experiments.published import (
    CREATING_ARTICLE,
    MACHINES_ARTICLE,
    OPERATIONS_ARTICLE,
    OVERHEAD_ARTICLE,
    SLOWER_ARTICLE,
)
from lib.sweeps.workers.queue import SERVED

APP = "app"  # value of `SERVED` under `make run`
STATIC = "static"  # value of `SERVED` for pages exported to a folder
# Makes marimo's editor open a notebook as its reader sees it; the pencil on the page switches to the cells. If the
# browser had to lay out an editor for each cell, the first results would take half as long again.
AS_PAGE = ("view-as", "present")
# In the exported folder: the front page, and the page that trains in the reader's browser.
FRONT, IN_BROWSER = "index.html", "in_your_browser.html"


@dataclass(frozen=True)
class Notebook:
    """`file` is relative to the project's root; `former` names earlier notebooks whose questions this one answers."""

    file: str
    title: str
    question: str
    articles: tuple[str, ...] = (OVERHEAD_ARTICLE, MACHINES_ARTICLE)
    former: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.file).stem

    @property
    def path(self) -> str:
        """Its path under `make class`, where / is the front page."""
        return f"/{self.name}/"

    @property
    def file_name(self) -> str:
        """Its file in a static site; links between such files work below any prefix."""
        return f"{self.name}.html"

    def address(self, served: str, query: str = "") -> str:
        """Its address for each way of serving.

        Args:
            served: "edit", where all notebooks share a page, "run", `APP` or `STATIC`.
            query: Settings, as in the page's address; a static file ignores them.
        """
        if served == STATIC:
            return self.file_name
        parts = [f"file={self.file}", "=".join(AS_PAGE)] if served == "edit" else []
        said = "&".join([*parts, *([query] if query else [])])
        return ("/" if served == "edit" else self.path) + (f"?{said}" if said else "")


FIRST = Notebook(
    "mnist_training.py",
    "Why slower?",
    "How large a step, how many images per step, how many layers, trained by what? Then a random search, and a look"
    " inside the best network.",
)
NOTEBOOKS = (
    FIRST,
    Notebook(
        "notebooks/which_library.py",
        "Which library?",
        "Which library is fastest at each batch size, and fastest to an accuracy? Which machine suits which work?",
        former=("backend_race", "compare_machines"),
    ),
    Notebook(
        "notebooks/inside_a_step.py",
        "Inside a step",
        "Where does a training step spend its time, what waits for what, and how do people mistime it?",
        former=("anatomy_of_a_step", "trace_of_a_step", "traps"),
    ),
    Notebook(
        "notebooks/many_networks.py",
        "Many networks",
        "How many networks can be trained at once?",
        former=("parallel_sweeps",),
    ),
    Notebook(
        "notebooks/operations_and_feeds.py",
        "Operations",
        "How large must a product, a sine or a copy be for a GPU to pay off? Does the step wait for its data?",
        (OVERHEAD_ARTICLE, OPERATIONS_ARTICLE, SLOWER_ARTICLE, CREATING_ARTICLE),
        former=("single_operations", "input_pipeline"),
    ),
    Notebook(
        "notebooks/your_gpu.py",
        "Your GPU",
        "Is your own GPU slower? Your browser trains on your GPU, through WebGPU, and on your CPU. No CUDA needed.",
        (SLOWER_ARTICLE,),
    ),
    Notebook(
        "notebooks/when_a_gpu_wins.py",
        "When a GPU wins",
        "From what width and batch size does a GPU win, what moves that border, and what would help your training?"
        " Predicted, even without a GPU.",
        former=("when_does_a_gpu_win", "what_would_help"),
    ),
    Notebook("notebooks/claims.py", "Claims", "Do the articles' claims hold on this machine?"),
)
# Only on a class site, and only for the teacher.
TEACHERS = Notebook("lib/site/teacher.py", "In front of a class", "What does the class expect? For the teacher.")
OF_A_CLASS_SITE = (*NOTEBOOKS, TEACHERS)
_PATHS = {f"/{name}": one.path for one in OF_A_CLASS_SITE for name in (one.name, *one.former)}


def notebook_of(name: str) -> Notebook:
    return next(one for one in OF_A_CLASS_SITE if name in (one.name, *one.former))


def present_path(path: str) -> str:
    """The current path under `make class` for a former name or a missing final slash; other paths unchanged."""
    return _PATHS.get(path.rstrip("/"), path)


def present_file(file: str) -> str:
    """The file that now includes this former notebook; other files unchanged."""
    return next((one.file for one in NOTEBOOKS if file in (f"notebooks/{name}.py" for name in one.former)), file)


def is_static(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get(SERVED) == STATIC


def link(name: str, environment: Mapping[str, str] = os.environ, query: str = "", title: str = "") -> str:
    """HTML: a link to a notebook, or just its title where no server has it.

    `query` holds settings as in the page's address; `title` replaces the notebook's title.
    """
    notebook = notebook_of(name)
    served, shown = environment.get(SERVED, ""), html.escape(title or notebook.title)
    if query and served == STATIC:  # a static file cannot apply the settings
        return shown
    return f'<a href="{html.escape(notebook.address(served, query))}">{shown}</a>' if served else shown


def navigation(
    here: str, environment: Mapping[str, str] = os.environ, is_teacher: bool = False, query: str = ""
) -> str:
    """HTML: links to the front page and the other notebooks, all with `query`; a class's teacher also gets that page.

    Empty if the server has no other page.
    """
    if SERVED not in environment:
        return ""
    items = (
        (
            f'<li aria-current="page">{html.escape(one.title)}</li>'
            if one.name == here
            else f"<li>{link(one.name, environment, query)}</li>"
        )
        for one in (OF_A_CLASS_SITE if is_teacher and environment[SERVED] == "run" else NOTEBOOKS)
    )
    front = {"run": "/", APP: "/", STATIC: FRONT}.get(environment[SERVED])
    home = f'<li><a href="{front}">All notebooks</a></li>' if front else ""
    edit = ""
    if environment[SERVED] == APP:
        edit = '<li class="lab-edit"><a href="/edit" title="This page in marimo’s editor">Edit</a></li>'
    return f'<nav class="lab-nav" aria-label="Notebooks"><ul>{home}{"".join(items)}{edit}</ul></nav>'
