"""The claims as a reader sees them: a table with a verdict for each, and how many got which verdict."""

from collections.abc import Sequence

from lib.experiments.claims import Claim, ClaimStatus, Judgement
from lib.views import markup, recorded_gpus
from lib.views.markup import inline

# Of each status its class in the page's style, and the verb for one claim and for several.
_WORDS = {
    ClaimStatus.HOLDS: ("holds", "holds here", "hold here"),
    ClaimStatus.NOT_HERE: ("not-here", "does not hold here", "do not hold here"),
    ClaimStatus.CORRECTED: ("corrected", "is corrected by arithmetic", "are corrected by arithmetic"),
    ClaimStatus.OPEN: ("open", "is open", "are open"),
    ClaimStatus.NO_GPU: ("open", "needs a GPU", "need a GPU"),
}


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
        rows.append([inline(claim.text), inline(one.measured), verdict, inline(_why(one))])
    return markup.table(["claimed", "measured here, or corrected", "verdict", "why"], rows, "claims")


def _why(judged: Judgement) -> str:
    """The reason, and what recorded cards say where this machine has none."""
    note = recorded_gpus.epoch_note(judged.recorded_at) if judged.recorded_at is not None else ""
    return f"{judged.why} {note}".rstrip()
