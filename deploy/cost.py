"""Print what a machine costs, by prices.json: `cost.py price l4 [--spot]`, or `cost.py status` with gcloud's rows on
stdin for the cost so far.

Uses only the standard library, because it runs before anything is installed.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

PRICES = json.loads((Path(__file__).parent / "prices.json").read_text(encoding="utf-8"))
DEVICES = Path(__file__).parent.parent / "recorded" / "devices.json"  # has the on-demand prices
RUNNING = ("PROVISIONING", "STAGING", "RUNNING")


def price(kind: str, spot: bool) -> tuple[float, str]:
    """Return dollars per hour, and the kind of price."""
    kept = PRICES["prices"][kind]
    if spot:
        return kept["spot"], "spot"
    devices = json.loads(DEVICES.read_text(encoding="utf-8"))["devices"]
    (figures,) = (one["figures"] for one in devices if one["key"] == kept["device"])
    return figures["price_per_h"]["value"], "on demand"


def price_sentence(kind: str, spot: bool) -> str:
    per_h, which = price(kind, spot)
    machine_type = PRICES["prices"][kind]["machine_type"]
    return (
        f"A {machine_type} costs about ${per_h:g} per hour ({which}, {PRICES['region']}, {PRICES['as_of']}; the machine"
        " alone)."
    )


def _clock(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def _span(length: timedelta) -> str:
    minutes = max(0, round(length.total_seconds() / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def status_sentence(row: list[str], now: datetime) -> str:
    """`row`: name, zone, status, kind, provisioning model, last start, creation, and time of automatic deletion."""
    name, zone, status, kind, model, started, created, ends = row
    if status not in RUNNING:
        return (
            f"{name} in {zone} is {status}: it computes nothing, but its disk costs money, and nothing deletes it by"
            " itself; deploy/gcp delete removes it."
        )
    since = _moment(started or created)
    per_h, which = price(kind, spot=model == "SPOT")
    cost = per_h * (now - since).total_seconds() / 3600
    end = _moment(ends) if ends else None
    ending = (
        f"deletes itself at {_clock(end)} (in {_span(end - now)})" if end else "has NO time limit: delete it yourself"
    )
    return (
        f"{name} in {zone} is {status} since {_clock(since)} ({_span(now - since)}), and {ending}. So far about"
        f" ${cost:.2f} (${per_h:g} per hour, {which}, {PRICES['region']}, {PRICES['as_of']}; the machine alone)."
    )


def sentences(lines: Iterable[str], now: datetime) -> Iterator[str]:
    return (status_sentence(row, now) for row in csv.reader(lines) if row)


def main() -> int:
    parser = argparse.ArgumentParser(prog="cost.py", description=__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    asked = what.add_parser("price")
    asked.add_argument("kind", choices=sorted(PRICES["prices"]))
    asked.add_argument("--spot", action="store_true")
    what.add_parser("status")
    options = parser.parse_args()
    if options.what == "price":
        print(price_sentence(options.kind, options.spot))
    else:
        print(*sentences(sys.stdin, datetime.now().astimezone()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
