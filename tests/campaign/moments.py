"""Signals at chosen moments of a process's life, whatever the machine's speed.

A moment is the n-th call that our code makes: of a Python function, or of a C function. Inside the
functions of PLACES every call counts, whoever makes it: ``os.replace``, or PyTorch's own.
"""

import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

#: What a process is doing, by the names of our functions that do it.
PLACES = {
    "held": "claiming",
    "_claim": "claiming",
    "common_point": "claiming",
    "_evaluated": "evaluating",
    "write_atomically": "writing",
}
WHERE = ("anywhere", *dict.fromkeys(PLACES.values()))
OURS = f"{os.sep}ucfl{os.sep}"


@dataclass(frozen=True)
class Stop:
    """Signals to send at the ``number``-th call of a place; the second one ``again`` calls later.

    They go to this process (``self``), to its parent (``launcher``) or to all whose numbers are
    names in the folder ``pids``. That they are sent is noted in the file ``fired``. The 0-th call
    never comes: calls are only counted.
    """

    where: str
    number: int
    signals: tuple[str, ...] = ()
    fired: str = ""
    again: int = 0
    to: str = "self"
    pids: str = ""


@dataclass
class Moments:
    """Counts a process's calls, and sends what ``stop`` says."""

    stop: Stop
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WHERE, 0))
    inside: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WHERE, 0))
    left: int = 0

    def start(self):
        sys.setprofile(self._profile)

    def _profile(self, frame, event, argument):
        code = frame.f_code
        ours = OURS in code.co_filename
        place = PLACES.get(code.co_name) if ours else None
        if place and event in ("call", "return"):
            self.inside[place] += 1 if event == "call" else -1
        if event not in ("call", "c_call"):
            return
        places = [where for where in WHERE if self.inside[where] > 0]
        if ours or {"claiming", "writing"} & {*places}:
            places.append("anywhere")  # but for the many calls that PyTorch makes
        for where in places:
            self.counts[where] += 1
            if (where, self.counts[where]) == (self.stop.where, self.stop.number):
                self._fire(self.stop)

    def _fire(self, stop):
        os.close(os.open(stop.fired, os.O_WRONLY | os.O_CREAT))
        if len(stop.signals) > 1:
            # A profile function that raises is taken away; a trace function goes on.
            self.left = stop.again
            sys.settrace(self._trace)
        self._send(stop.signals[0])

    def _trace(self, frame, event, argument):
        self.left -= 1
        if self.left == 0:
            self._send(self.stop.signals[1])

    def _send(self, name):
        targets = [os.getpid()]
        if self.stop.to == "launcher":
            targets = [os.getppid()]
        elif self.stop.to == "all":
            everyone = [int(file.name) for file in Path(self.stop.pids).iterdir()]
            targets = [pid for pid in everyone if pid != os.getpid()] + targets
        for target in targets:
            os.kill(target, getattr(signal, f"SIG{name}"))
