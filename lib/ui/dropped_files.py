"""Files that somebody drops on a page or, in the editor, names by their path."""

from collections.abc import Mapping
from pathlib import Path

import marimo as mo

from lib.ui.uploads import MAX_DROPPED_BYTES


def file_fields(label: str) -> dict:
    """The field for files, and in the editor one for the path of a file too large to be dropped."""
    fields: dict = {"files": mo.ui.file(multiple=True, kind="area", max_size=MAX_DROPPED_BYTES, label=label)}
    if _may_name_a_path():
        fields["path"] = mo.ui.text(
            label="or the path of a larger file on this machine", full_width=True, max_length=4096
        )
    return fields


def _may_name_a_path() -> bool:
    """Whether a file of this machine may be named: by who edits the notebook, and never by a viewer."""
    return mo.app_meta().mode in ("edit", "script")


def files_of(dropped: Mapping[str, object]) -> tuple[tuple[str, bytes | Path], ...]:
    """Name, and content or path, of each file that was brought; a path only where it may be named."""
    files = [(one.name, one.contents) for one in dropped.get("files") or ()]  # type: ignore[attr-defined]
    path = str(dropped.get("path") or "").strip() if _may_name_a_path() else ""
    return (*files, *([(Path(path).name, Path(path).expanduser())] if path else []))


def stacked(panel: mo.ui.dictionary) -> mo.Html:
    """The fields of a panel, one below the other."""
    return mo.Html("".join(f"<div>{element.text}</div>" for element in panel.elements.values()))
