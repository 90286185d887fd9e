"""What two articles advise, each beside what was measured here, and the finding that follows from it."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import marimo as mo

from lib.formatting import listed, seconds
from lib.labs.operations_and_feeds.feeds import Feeds, difference
from lib.labs.operations_and_feeds.tensorflow import AGAIN, TENSORFLOW, models, placement, placement_device
from lib.model.backends.registry import Runtime, unavailable
from lib.model.hardware.nvidia_smi import cards
from lib.sweeps.experiments.background import News
from lib.sweeps.experiments.input_pipeline import NETWORK, Figures, recorded_figures
from lib.sweeps.experiments.published import CREATING_ARTICLE, SLOWER_ARTICLE
from lib.sweeps.storage.current import current
from lib.sweeps.storage.records import Kind, Record
from lib.timing.diagnosis import Finding, Observed, findings
from lib.timing.measurement import Measurement
from lib.timing.profiling.first_use import BATCH_SIZE as FRESH_BATCH
from lib.timing.profiling.request import FEEDS, Pipeline
from lib.ui.lab import Hook, Page, Section
from lib.ui.stage import Stage
from lib.ui.streaming import paint_at_changes
from lib.ui.views.markup import inline, table


class Checklist(Hook):
    """Draws the articles' advice anew when a section has ended."""

    def attach(self, page: Page) -> None:
        super().attach(page)
        self._stage, self._news = Stage(page.engine, page.store, page.address), News()

    def ended(self, section: Section) -> None:
        self._news.tell()

    def close(self) -> None:
        self._stage.close()
        self._news.tell()

    def show(self, feed: mo.ui.dictionary) -> None:
        try:
            at = Feeds.checked("feed", feed.value)
            chosen = at.pipeline
        except ValueError:
            return  # the panel's own section says it
        paint_at_changes(self._stage, self._news, partial(self._paint, chosen, at.device))

    def _paint(self, chosen: Pipeline, device: str) -> int:
        version, records = self._news.version, self.page.store.records(Kind.PIPELINE)
        where = placement_device()
        present, registered = gpus()
        if registered is None and where == "gpu":
            registered = placement(records, where).get("gpus")
        created = models(records, where).get(NETWORK)
        found = all_figures(records, device)
        mo.output.replace(mo.Html(checklist(found, chosen, device, present, registered, created)))
        return version


def all_figures(records: Sequence[Record], device: str) -> list[Figures]:
    """The latest valid figures of every pipeline that was measured by itself on this device, whatever its settings."""
    return [
        figures
        for backend in FEEDS
        for figures in recorded_figures(
            current(records, Kind.PIPELINE, {"backend": backend, "device": device}, Runtime(backend, device))
        )
    ]


def gpus() -> tuple[int, int | None]:
    """GPUs that the driver lists, and those that TensorFlow can use by what is installed.

    None of the latter where only TensorFlow itself can tell.
    """
    present = len(cards())
    return present, 0 if present and unavailable(Runtime(TENSORFLOW, "gpu")) is not None else None


def checklist(
    figures: Sequence[Figures],
    chosen: Pipeline,
    device: str,
    gpus_present: int,
    gpus_registered: int | None,
    created: Mapping[str, Measurement] | None,
) -> str:
    known = {one.pipeline: one for one in figures}
    here, slower = known.get(chosen), SLOWER_ARTICLE
    sees = _found(device=device, gpus_present=gpus_present, gpus_registered=gpus_registered)
    warm, cold = _warm(created, chosen.rows) if created is not None else ("", None)
    bound, preprocessing = (_input_bound(here), _preprocessing(here)) if here is not None else (None, "")
    advice = [
        ("Larger batches, where a step is short", slower, _batches(figures, chosen), None),
        ("`tf.data` with prefetch", slower, _beside(known, chosen, "prefetch"), bound),
        ("Less preprocessing in Python", slower, preprocessing, None),
        ("The operations that matter run on the GPU", slower, _registered(gpus_present, gpus_registered), sees),
        ("Benchmark after warming up", slower, warm, cold),
        ("Prefetch and parallel calls by AUTOTUNE", CREATING_ARTICLE, _beside(known, chosen, "autotune"), None),
    ]
    rows = [
        [
            f"{inline(text)}<br><small>{html.escape(source)}</small>",
            html.escape(measured) or "not measured yet",
            f"<b>{html.escape(finding.name)}</b>: {html.escape(finding.text)}" if finding else "none",
        ]
        for text, source, measured, finding in advice
    ]
    return table(["advice", "measured here", "finding"], rows, "claims")


def _found(**observed: Any) -> Finding | None:
    return next(iter(findings(Observed(**observed))), None)


def _batches(figures: Sequence[Figures], chosen: Pipeline) -> str:
    steps = {one.pipeline.batch_size: one.step for one in figures if one.pipeline.feed == chosen.feed}
    parts = [f"{seconds(step.median_s / size)} an image at batch size {size:,}" for size, step in sorted(steps.items())]
    more = "; move the batch size to see another" if len(parts) == 1 else ""
    return f"The step alone: {listed(parts)}{more}." if parts else ""


def _beside(known: Mapping[Pipeline, Figures], chosen: Pipeline, feed: str) -> str:
    plain, other = (known.get(replace(chosen, feed=name)) for name in ("tf.data", feed))
    if plain is None or other is None:
        return ""
    return f"“{other.pipeline.label}” beside “{plain.pipeline.label}”: {difference(other, plain, paired=False).text}."


def _input_bound(here: Figures) -> Finding | None:
    work_s = here.preprocessing.median_s * here.pipeline.batch_size if here.pipeline.preprocessing_ms else None
    both_s = here.both.median_s
    return _found(step_s=both_s, input_s=here.share[0] * both_s, preprocessing_s=work_s)


def _preprocessing(here: Figures) -> str:
    if not here.pipeline.preprocessing_ms:
        return "There is none at 0 ms an image."
    lock = (
        "Python, which holds the interpreter's lock" if here.pipeline.holds_lock else "compiled code without the lock"
    )
    return f"{seconds(here.preprocessing.median_s)} an image, in {lock}."


def _registered(present: int, registered: int | None) -> str:
    seen = "" if registered is None and present else f"; TensorFlow sees {registered or 0}"
    if not present:
        return "No NVIDIA driver answers: everything runs on the CPU."
    return f"The driver lists {present} GPU{'s' * (present > 1)}{seen}."


def _warm(created: Mapping[str, Measurement], rows: int) -> tuple[str, Finding | None]:
    """What Keras' first step takes, and whether it would be much of an epoch of so many rows that counts it."""
    first_s, later_s = (created[name].median_s for name in ("step", AGAIN["step"]))
    epoch_s = later_s * max(1, rows // FRESH_BATCH)
    text = f"The first step of Keras takes {seconds(first_s)} in a fresh process, later ones {seconds(later_s)}."
    return text, _found(first_call_counted=True, epoch_s=(first_s + epoch_s, epoch_s, epoch_s))
