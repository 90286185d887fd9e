"""The “Export” menu of an experiment. Files are built only on request.

The browser sends requests and saves the replies; pictures come from its own charts (`widgets/export.js`).
"""

import re
from collections.abc import Callable, Mapping
from datetime import date

import marimo as mo

from lib.formatting import listed, sentence
from lib.model.hardware.machine import this_machine
from lib.sweeps.experiments.exported_script import (
    LIBRARIES,
    Takeaway,
    exported_bundle,
    exported_script,
    file_name,
    installed,
)
from lib.ui.widgets import Scripted

MAX_OFFERED = 24  # trainings listed, best first; a search has a thousand


class ExportMenu:
    """A stage's menu; create it once per session, in a cell that does not run again."""

    def __init__(self) -> None:
        self.forget()
        self.widget = Scripted("export")
        self.widget.on_msg(lambda _widget, content, _buffers: self._hear(content))
        self.text = mo.ui.anywidget(self.widget).text

    def forget(self) -> None:
        self.now: Callable[[], Takeaway | None] = lambda: None  # what can be exported right now

    def _hear(self, asked: object) -> None:
        """Answer a browser message, which may contain anything, with a file, the choices or an error."""
        if not isinstance(asked, Mapping):
            return
        try:
            shown = self.now()
            if shown is None:
                raise ValueError("expected a result to export, got none yet; wait for the first one")
            makers = {"open": self._open, "script": self._script, "rows": self._rows, "picture": self._picture}
            make = makers.get(str(asked.get("ask")))
            if make is not None:
                make(shown, asked)
        except ValueError as error:
            self.widget.send({"is": "sorry", "sentence": sentence(error)})

    def _open(self, shown: Takeaway, _asked: Mapping) -> None:
        best = shown.best_first()[:MAX_OFFERED]
        missing = [label for key, (label, _) in LIBRARIES.items() if key not in installed()]
        notes = [f"Not installed here, so no file could state its version: {listed(missing)}."] if missing else []
        if shown.own_data:
            notes.append("With your own data, the Python file comes in a ZIP with the rows it trains on.")
        self.widget.send(
            {
                "is": "choices",
                "lines": [[place, shown.described(place)] for place in best],
                "libraries": installed(),
                "rows": list(shown.rows),
                "notes": notes,
            }
        )

    def _script(self, shown: Takeaway, asked: Mapping) -> None:
        place, library = asked.get("line"), str(asked.get("library"))
        if place not in shown.best_first() or library not in installed():
            raise ValueError(
                "expected a finished training and a library from the list; close the menu and open it again"
            )
        if shown.data is None:
            raise ValueError("expected loaded images, got none yet; wait for a training to load them")
        line, name = shown.lines[place], file_name(shown.lines[place], library)
        if shown.own_data:
            bundle = exported_bundle(shown.experiment, line, shown.data, library)
            return self._send(f"{name.removesuffix('.py')}.zip", "application/zip", bundle)
        self._send(name, "text/x-python", exported_script(shown.experiment, line, shown.data, library).encode())

    def _rows(self, shown: Takeaway, asked: Mapping) -> None:
        kind = str(asked.get("rows"))
        if kind not in shown.rows:
            raise ValueError("expected rows from the list; close the menu and open it again")
        content = shown.rows[kind]().to_csv(index=False, lineterminator="\n").encode()
        self._send(f"{_plain(shown.experiment)}_{_plain(kind)}.csv", "text/csv", content)

    def _picture(self, shown: Takeaway, asked: Mapping) -> None:
        source = (
            f"“Why is my GPU slower?”, {date.today().isoformat()}. {this_machine().line}."
            f" Data: {shown.data.source if shown.data else 'unknown'}. {shown.settings[:1].upper()}{shown.settings[1:]}"
        )
        self.widget.send(
            {
                "is": "picture",
                "form": "png" if asked.get("form") == "png" else "svg",
                "file": _plain(shown.experiment),
                "title": shown.sentence or sentence(shown.experiment),
                "source": source,
            }
        )

    def _send(self, file: str, kind: str, content: bytes) -> None:
        self.widget.send({"is": "file", "file": file, "type": kind}, buffers=[content])


def _plain(text: str) -> str:
    """Make a text part of a file name.

    >>> _plain("loss by step, as drawn")
    'loss_by_step_as_drawn'
    """
    return re.sub(r"\W+", "_", text).strip("_")
