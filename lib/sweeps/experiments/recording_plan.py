"""What a card is asked while it is at hand, in order of value: a file of TOML, one table `[[ask]]` for each question.

[[ask]]
question = "ceilings"       # a name of `lib.sweeps.experiments.full_recording.QUESTIONS`
of = ["*/gpu", "*/gpu/*"]   # of which runtimes: addresses such as jax-epoch/gpu, or patterns of them
expected_s = 30             # a question begins only where so much time is left
"""

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from lib.model.backends.registry import Runtime, all_runtimes, unavailable

MAX_EXPECTED_S = 36_000.0


class NoPlan(ValueError):
    """The file is no plan, or no plan for this machine; the text says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Entry:
    """A question, of which runtimes it is asked, and how many seconds that is expected to take."""

    question: str
    of: tuple[str, ...]
    expected_s: float

    @property
    def title(self) -> str:
        """Question and runtimes, in words."""
        return f"{self.question} of {', '.join(self.of)}"

    def among(self, runtimes: Sequence[Runtime]) -> list[Runtime]:
        """The runtimes that it is asked of."""
        return [one for one in runtimes if any(fnmatchcase(one.address, pattern) for pattern in self.of)]


def read_plan(path: Path, questions: Collection[str]) -> list[Entry]:
    """The entries of a plan, in its order.

    Args:
        path: The file.
        questions: Names that it may ask.

    Raises:
        NoPlan: It cannot be read, or one of its entries cannot be asked.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise NoPlan(f"expected a plan in TOML, got {path.name} ({what}); see recorded/plan.toml") from error
    asked = content.get("ask")
    if not isinstance(asked, list) or not asked or len(content) > 1:
        raise NoPlan(
            f"{path.name}: expected tables [[ask]] and nothing else, got {', '.join(content) or 'none'}; see"
            " recorded/plan.toml"
        )
    entries = [_entry(f"{path.name}, question {number}", one, questions) for number, one in enumerate(asked, 1)]
    for entry in entries:
        if entries.count(entry) > 1:
            raise NoPlan(f"{path.name}: expected each question once, got {entry.title} twice; leave one out")
    return entries


def _entry(where: str, one: object, questions: Collection[str]) -> Entry:
    names = {"question", "of", "expected_s"}
    if not isinstance(one, dict) or one.keys() != names:
        got = ", ".join(sorted(one)) if isinstance(one, dict) else one
        raise NoPlan(f"{where}: expected {', '.join(sorted(names))}, got {got}; correct it")
    question, of, expected_s = one["question"], one["of"], one["expected_s"]
    if question not in questions:
        raise NoPlan(f"{where}: expected one of {', '.join(questions)}, got {question!r}; choose among these")
    if not isinstance(of, list) or not of or not all(isinstance(pattern, str) for pattern in of):
        raise NoPlan(f'{where}: expected runtimes such as ["*/gpu"] in `of`, got {of!r}; correct it')
    if type(expected_s) not in (int, float) or not 0 < expected_s <= MAX_EXPECTED_S:
        raise NoPlan(
            f"{where}: expected more than 0 and up to {MAX_EXPECTED_S:,.0f} seconds in `expected_s`, got"
            f" {expected_s!r}; correct it"
        )
    unknown = [address for address in of if not {*"*?["} & {*address} and not _is_runtime(address)]
    if unknown:
        raise NoPlan(f"{where}: expected a runtime such as jax-epoch/gpu, or a pattern, got {unknown[0]!r}; correct it")
    return Entry(question, tuple(of), float(expected_s))


def _is_runtime(address: str) -> bool:
    """Whether it is the address of a runtime, here or on some other machine."""
    try:
        return Runtime(*address.split("/")).address == address
    except (ValueError, TypeError):
        return False


def not_here(plan: Sequence[Entry], runtimes: Sequence[Runtime]) -> dict[Entry, str]:
    """Why entries of the plan cannot be asked here, a sentence each.

    Args:
        plan: What is to be asked.
        runtimes: What can run here.

    Raises:
        NoPlan: It is for a card, and none of this machine can be used; or nothing of it can be asked.
    """
    every = all_runtimes()
    on_cards = [one for entry in plan for one in entry.among(every) if one.device == "gpu"]
    if on_cards and not any(one in runtimes for one in on_cards):
        gaps = [gap for one in on_cards if (gap := unavailable(one)) is not None]
        reasons = list(dict.fromkeys(f"{gap.reason}; {gap.remedy}" for gap in gaps))
        # A driver that is too old is the reason that somebody can do something about.
        reasons.sort(key=lambda why: "driver" not in why)
        raise NoPlan(f"expected a card that can be used, as the plan asks for one, but {reasons[0]}")
    found: dict[Entry, str] = {}
    for entry in plan:
        if not entry.among(runtimes):
            gaps = [f"{one.label}: {gap.reason}" for one in entry.among(every) if (gap := unavailable(one)) is not None]
            found[entry] = f"{entry.title}: {gaps[0] if gaps else 'this machine has none of them'}"
    if plan and len(found) == len(plan):
        raise NoPlan(f"expected a question that can be asked here, but {found[plan[0]]}; install that, or ask another")
    return found
