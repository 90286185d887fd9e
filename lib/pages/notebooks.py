"""The notebooks, and the way from one to another: one server serves all of them."""

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lib.experiments.published import (
    CREATING_ARTICLE,
    MACHINES_ARTICLE,
    OPERATIONS_ARTICLE,
    OVERHEAD_ARTICLE,
    SLOWER_ARTICLE,
)

SERVED = "MNIST_NOTEBOOKS_SERVED"  # “edit” or “run” in the environment of a server that serves all of them


@dataclass(frozen=True)
class Notebook:
    """A notebook's file from the project's root, what a link to it says, and the articles that it follows."""

    file: str
    title: str
    articles: tuple[str, ...] = (OVERHEAD_ARTICLE, MACHINES_ARTICLE)

    @property
    def name(self) -> str:
        """The file's name without its ending; pages and settings go by it."""
        return Path(self.file).stem

    @property
    def path(self) -> str:
        """Its path under `make class`."""
        return "/" if self is FIRST else f"/{self.name}/"

    def address(self, served: str) -> str:
        """Its address by how it is served: "edit", where all notebooks share a page, or "run"."""
        return f"/?file={self.file}" if served == "edit" else self.path


FIRST = Notebook("mnist_training.py", "Training")
NOTEBOOKS = (
    FIRST,
    Notebook("notebooks/backend_race.py", "The race of the backends"),
    Notebook("notebooks/anatomy_of_a_step.py", "The anatomy of a step"),
    Notebook("notebooks/traps.py", "How to mistime a step"),
    Notebook("notebooks/input_pipeline.py", "What feeds a step", (SLOWER_ARTICLE, CREATING_ARTICLE)),
    Notebook("notebooks/trace_of_a_step.py", "The trace of a step", (OVERHEAD_ARTICLE,)),
    Notebook("notebooks/parallel_sweeps.py", "Many trainings at once"),
    Notebook("notebooks/single_operations.py", "Single operations", (OVERHEAD_ARTICLE, OPERATIONS_ARTICLE)),
    Notebook("notebooks/your_gpu.py", "Your own GPU", (SLOWER_ARTICLE,)),
    Notebook("notebooks/when_does_a_gpu_win.py", "When does a GPU win?"),
    Notebook("notebooks/what_would_help.py", "What would help?"),
    Notebook("notebooks/teacher.py", "In front of a class"),
    Notebook("notebooks/claims.py", "Claims and figures"),
    Notebook("notebooks/compare_machines.py", "Machines compared"),
)


def notebook_of(name: str) -> Notebook:
    """The notebook of this name."""
    return next(one for one in NOTEBOOKS if one.name == name)


def link(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """HTML: a notebook's title, as a link where the server has that notebook; an exported page has no server."""
    notebook = notebook_of(name)
    served, title = environment.get(SERVED, ""), html.escape(notebook.title)
    return f'<a href="{html.escape(notebook.address(served))}">{title}</a>' if served else title


def navigation(here: str, environment: Mapping[str, str] = os.environ) -> str:
    """HTML: links to the other notebooks; nothing where the server has no other."""
    if SERVED not in environment:
        return ""
    items = (
        (
            f'<li aria-current="page">{html.escape(one.title)}</li>'
            if one.name == here
            else f"<li>{link(one.name, environment)}</li>"
        )
        for one in NOTEBOOKS
    )
    return f'<nav class="lab-nav" aria-label="Notebooks"><ul>{"".join(items)}</ul></nav>'
