"""The rooms of this project, low to high: docs/architecture.md."""

from pathlib import Path

# Of the project: its notebooks, its recorded machines, and what workers import from.
ROOT = Path(__file__).resolve().parent.parent
