"""A participant's process: `python -m benchmarks.peer NAME` answers each line of JSON on its standard input by one.

`{"do": "start", …the training}` trains the first epoch; `{"do": "go"}` trains the next one. In between it waits for its
input and does nothing; it ends when its input does.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

from benchmarks.peer import PEERS, Peer
from benchmarks.peer.loop import CHECKED_STEPS
from lib.model.backends.base import Epoch, Event, Steps
from lib.model.data.mnist import Data, load
from lib.model.spec import Network, Training

Answer = dict[str, object]


class Trainer:
    """A training that goes on when asked."""

    def __init__(self, events: Iterator[Event]) -> None:
        self._events = events

    def advance(self) -> Answer:
        """Train to the end of an epoch."""
        train_s, steps, losses = 0.0, 0, []
        for event in self._events:
            if isinstance(event, Steps):
                train_s, steps = train_s + event.train_s, steps + len(event.losses)
                losses += event.losses[: CHECKED_STEPS - len(losses)].tolist()
            elif isinstance(event, Epoch):
                found = {"epoch": event.epoch, "accuracy": event.validation_accuracy}
                return {"train_s": train_s, "steps": steps, "losses": losses} | found
        raise RuntimeError("it has no more epochs")


def serve(peer: Peer, data: Data, questions: TextIO, answers: TextIO) -> None:
    """Answer until the questions end. What a library raises is an answer too."""
    function = getattr(importlib.import_module(peer.module), peer.function)
    _say(answers, {"ready": True})
    trainer: Trainer | None = None
    answer: Answer
    for line in questions:
        question = json.loads(line)
        try:
            if question.pop("do") == "start":
                training = Training(Network(tuple(question.pop("hidden"))), **question)
                trainer = Trainer(function(training, data))
            assert trainer is not None, "started before it goes on"
            answer = trainer.advance()
        except Exception as error:  # any library's: whoever asked gets a sentence, the log the traceback
            traceback.print_exc(file=sys.stderr)
            answer = {"error": _sentence(error)}
        _say(answers, answer)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _say(answers: TextIO, answer: Answer) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PEERS:
        print(f"Peer: expected one of {', '.join(PEERS)}, got {' '.join(arguments) or 'none'}.", file=sys.stderr)
        return 2
    # Libraries print as they like: the pipe is kept for answers, and what is printed goes to the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(PEERS[arguments[0]], load(), sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
