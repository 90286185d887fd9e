"""Files that somebody drops on a page or, in the editor, names by their path."""

from collections.abc import Mapping
from pathlib import Path

import marimo as mo


def may_name_a_path() -> bool:
    """Whether a file of this machine may be named: by who edits the notebook, and never by a viewer."""
    return mo.app_meta().mode in ("edit", "script")


def files_of(dropped: Mapping[str, object]) -> tuple[tuple[str, bytes | Path], ...]:
    """Name, and content or path, of each file that was brought; a path only where it may be named."""
    files = [(one.name, one.contents) for one in dropped.get("files") or ()]  # type: ignore[attr-defined]
    path = str(dropped.get("path") or "").strip() if may_name_a_path() else ""
    return (*files, *([(Path(path).name, Path(path).expanduser())] if path else []))


def dropped_fields(dropped: mo.ui.dictionary) -> mo.Html:
    """The fields of `drop`, one below the other."""
    return mo.Html("".join(f"<div>{element.text}</div>" for element in dropped.elements.values()))
