"""The articles' claims, each with a verdict and why; `lib.sweeps.experiments.claims` judges them, and measures for
it."""

from collections.abc import Callable, Sequence

from lib.model.backends.registry import usable_runtimes
from lib.sweeps.experiments.claims import (
    CLAIMS,
    Claim,
    ClaimStatus,
    Judgement,
    known,
    measure_missing,
    progress,
    stood_on,
)
from lib.sweeps.storage.store import Store
from lib.sweeps.workers.notes import State
from lib.ui import layout
from lib.ui.lab import Asked, Drawing, Shown, nothing
from lib.ui.panel import Controls
from lib.ui.views import markup, recorded_gpus
from lib.ui.views.markup import inline

# Of each status its class in the page's style, and the verb for one claim and for several.
_WORDS = {
    ClaimStatus.HOLDS: ("holds", "holds here", "hold here"),
    ClaimStatus.NOT_HERE: ("not-here", "does not hold here", "do not hold here"),
    ClaimStatus.CORRECTED: ("corrected", "is corrected by arithmetic", "are corrected by arithmetic"),
    ClaimStatus.OPEN: ("open", "is open", "are open"),
    ClaimStatus.NO_GPU: ("open", "needs a GPU", "need a GPU"),
}


class Claims(Controls):
    AGAIN = "Measure what is missing", "A few minutes"


def measure(store: Store) -> Callable[[Claims], Asked]:
    """Measures at a press what the claims need and `store` does not have."""
    return lambda at: Asked(at, lambda pressed: ((store.records(), pressed), measure_missing if pressed else nothing))


def draw(shown: Shown) -> Drawing:
    (stored, pressed), now = shown.known, shown.now
    records = [*stored, *now.items]
    done, total = progress(records)
    waiting = State.SAVED if done == total else State.NOT_RUNNING
    line = layout.state_line(
        now.state if pressed else waiting,
        done,
        total,
        now.note or f"{done} of {total} measurements are there",
        now.problem,
    )
    here = known(usable_runtimes(), records)
    judged = [claim.judge(here) for claim in CLAIMS]
    text = sentence(judged)
    return Drawing(line + layout.said(text), text, table(CLAIMS, judged) + layout.disturbed(stood_on(records)))


def sentence(judged: Sequence[Judgement]) -> str:
    """How many claims got which verdict, in words.

    >>> found = ClaimStatus.CORRECTED, ClaimStatus.HOLDS, ClaimStatus.HOLDS
    >>> sentence([Judgement(status, "", "") for status in found])
    'Of 3 claims: 2 hold here, 1 is corrected by arithmetic.'
    """
    verdicts = [one.verdict for one in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in ClaimStatus}
    words = ", ".join(f"{n} {_WORDS[verdict][1 if n == 1 else 2]}" for verdict, n in counts.items() if n)
    return f"Of {len(verdicts)} claims: {words}."


def table(claims: Sequence[Claim], judged: Sequence[Judgement]) -> str:
    """HTML: one row per claim, below a heading of its article; claims and judgements are in the same order."""
    rows, source = [], ""
    for claim, one in zip(claims, judged, strict=True):
        if claim.source != source:
            source = claim.source
            rows.append([inline(source)])
        verdict = (
            f'<span class="claim claim-{_WORDS[one.verdict][0]}">{one.verdict.value}</span>'
            f"<br><small>{one.verdict.follows_from}</small>"
        )
        recorded = recorded_gpus.epoch_note(one.recorded_at) if one.recorded_at is not None else ""
        rows.append([inline(claim.text), inline(one.measured), verdict, inline(f"{one.why} {recorded}".rstrip())])
    return markup.table(["claimed", "measured here, or corrected", "verdict", "why"], rows, "claims")
