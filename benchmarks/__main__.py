"""`python -m benchmarks [names]`: run these benchmarks, or all.

The exit status is 0 even if a target is missed, 2 for a wrong name.
"""

import importlib
import signal
import sys
import time
import traceback
from collections.abc import Sequence

import psutil

from benchmarks.report import outdated
from lib.model.hardware.machine import this_machine

BUSY_PERCENT = 15.0  # over all cores, in the two seconds before a benchmark
NAMES = (
    "comparison",
    "epochs",
    "anatomy",
    "pipeline",
    "experiments",
    "sweeps",
    "regret",
    "peers",
    "busy",
    "interaction",
    "drawn",
    "pages",
    "prediction",
    "reports",
    "remedies",
    "surface",
    "memory",
    "viewers",
    "classroom",
    "traces",
    "webgpu",
)


def main(arguments: Sequence[str]) -> int:
    wrong = [name for name in arguments if name not in NAMES]
    if wrong:
        print(f"Benchmark: expected {', '.join(NAMES)}, got {', '.join(wrong)}; leave it out for all.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and workers are stopped too
    print(this_machine().line)
    failed = False
    for name in dict.fromkeys(arguments or NAMES):
        began = time.monotonic()
        if (busy := psutil.cpu_percent(interval=2)) > BUSY_PERCENT:
            print(
                f"Other programs use {busy:.0f} % of the processor: these seconds will be too long. Close them, and"
                " measure again."
            )
        try:
            importlib.import_module(f"benchmarks.{name}").main()
        except RuntimeError as error:  # it cannot run here, for example without a browser
            print(f"\n{name}: {error}", file=sys.stderr)
            failed = True
        except Exception:  # a bug in one benchmark must not lose the others
            print(f"\n{name}:", file=sys.stderr)
            traceback.print_exc()
            failed = True
        print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)
    for one in outdated(NAMES):
        print(one)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
