"""The rooms of this project, low to high: docs/architecture.md."""

from pathlib import Path

ROOT = (
    Path(__file__).resolve().parent.parent
)  # of the project: notebooks, recorded machines, and what workers import from
