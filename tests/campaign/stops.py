"""Random stops of ``ucfl``, and whether what is resumed ends in the undisturbed history.

usage: python tests/campaign/stops.py STOPS [--seed SEED] [--kinds run,compare,…] [--plain]

Kinds: run, compare, reproduce, fresh (a run that replaces another), ranks (two processes that
share the users) and torchrun (the same, started by torchrun itself: slow). Each work is stopped up
to six times. What lies on disk after a stop must be whole, and what lies there at the end equal to
what an undisturbed process leaves, bit for bit. A seed decides the works and the moments.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import processes
import works
from moments import Stop
from processes import Wrong
from works import Work

from ucfl.users import datasets

SIGNALS = (("KILL",), ("TERM",), ("INT",), ("INT", "INT"), ("TERM", "TERM"))
#: anywhere, then the moments that lost rounds once.
WHERE = ("anywhere", "anywhere", "claiming", "evaluating", "writing", "writing")
KINDS = {"run": 8, "compare": 3, "reproduce": 2, "fresh": 3, "ranks": 4, "torchrun": 2}
MOST = 6
ALGORITHMS = ("fedavg", "user-centric:streams=2", "scaffold", "ditto")
#: Those whose users can be shared out.
SHARED = ALGORITHMS[:3]


class Campaign:
    """Works that are stopped; ``seen`` counts the stops by kind, signals and place."""

    def __init__(self, folder, seed, kinds, plain):
        self.folder, self.random = folder, random.Random(seed)
        self.kinds, self.plain = kinds, plain
        self.seen, self.whole, self.places = Counter(), {}, {}
        self.trail = []  # of the work at hand: its command, and how each attempt ended
        works.write_users(folder / "data")
        if "reproduce" in kinds:
            datasets.load("mnist5k")  # once, for all forked processes

    def stops(self, count):
        """Stop works until ``count`` stops have happened; how many of them did no harm."""
        number = good = 0
        while (done := sum(self.seen.values())) < count:
            number += 1
            place, self.trail = self.folder / f"work-{number}", []
            try:
                self.one(self.work(), place, count - done)
            except Wrong as error:
                print(f"work {number}: {error}", *self.trail, sep="\n    ", flush=True)
            else:
                good += sum(self.seen.values()) - done
                shutil.rmtree(place)
        return good

    def one(self, work, place, most):
        """Stop it, go on, stop it again, … and compare what it leaves."""
        expected, histories, counts = self.undisturbed(work)
        place.mkdir()
        more = ()
        if work.replaces:
            shutil.copytree(work.replaces, place / "r")
            more = ("--fresh",)
        for _ in range(min(MOST, most)):
            stop, rank = self.moment(work, place, counts)
            ended = self.attempt(work, place, more, stop, rank)
            works.check_begun(place / "r", histories)
            if set(ended.codes) == {0}:
                break
            more = self.next(work, place)
        if set(self.attempt(work, place, more).codes) != {0}:
            raise Wrong("it cannot go on")
        found = works.left(place / "r")
        if found != expected:
            names = [
                name for name in {**found, **expected} if found.get(name) != expected.get(name)
            ]
            raise Wrong(f"what it leaves differs in {', '.join(names)}")
        if hidden := [file.name for file in place.iterdir() if file.name.startswith(".")]:
            raise Wrong(f"it leaves {', '.join(hidden)}")

    def attempt(self, work, place, more, stop=None, rank=0):
        """The command in a process, or two, with a word on each; no traceback is ever right."""
        ended = work.start(place, work.arguments(place, *more), stop, rank)
        if ended.stopped:
            self.seen[work.kind, "+".join(stop.signals), stop.where] += 1
        self.trail.append(f"{' '.join(work.arguments(place, *more))}")
        self.trail.append(f"    {stop} rank {rank} -> {ended.codes} {ended.said[-1500:]}")
        if work.start is not processes.run_launched:
            expected = {0, 130, -signal.SIGKILL, -signal.SIGTERM}
            if work.ranks > 1:  # another has ended; Ctrl-C while this one waits for the others
                expected |= {2, -signal.SIGINT}
            if stop and not set(ended.codes) <= expected:
                raise Wrong(f"exit codes {ended.codes}")
            if "Traceback" in ended.said:
                raise Wrong("a traceback")
        return ended

    def next(self, work, place):
        """What a person adds to the command after a stop."""
        if not work.replaces:
            return work.again
        if works.is_of(place / "r", work.label):
            return ("--resume",)
        # The old run: still there, or brought back by the next command on the folder.
        old = works.left(work.replaces)
        if self.random.random() < 0.5:
            command = replace(work, command=self.old.command)
            if self.attempt(command, place, ()).codes != (0,) or works.left(place / "r") != old:
                raise Wrong("the run that was to be replaced is not there any more")
        return ("--fresh",)

    def undisturbed(self, work):
        """What the work leaves, its histories, and the calls that it makes where."""
        key = (work.command, work.ranks)
        if key not in self.whole:
            place = self.folder / f"whole-{len(self.whole)}"
            start = processes.run if work.ranks == 1 else processes.run_ranks
            counted = Stop("anywhere", 0)
            ended = start(place, work.arguments(place), counted)
            if work.ranks > 1:  # the other one's calls, too
                shutil.rmtree(place / "r")
                other = start(place, work.arguments(place), counted, 1)
                ended = replace(other, counts=(ended.counts[0], other.counts[1]))
            if set(ended.codes) != {0}:
                raise Wrong(f"the undisturbed work fails: {ended.said}")
            processes.learn_imports(place)
            found = place / "r"
            self.places[work.command] = found
            self.whole[key] = works.left(found), works.histories(found), ended.counts
        return self.whole[key]

    def work(self):
        """One of the kinds, by its share."""
        choose = self.random.choice
        kind = self.random.choices(self.kinds, [KINDS[kind] for kind in self.kinds])[0]
        label = choose(ALGORITHMS)
        users = (str(self.folder / "data"), "--model", "mlp", "--set", "batch=4", "--json")
        users += ("--plain",) if self.plain or choose((True, False)) else ()
        if kind == "compare":
            names, seeds = ",".join(self.random.sample(ALGORITHMS, 2)), choose(("0", "0-1"))
            options = ("--rounds", "3", "--algorithms", names, "--seeds", seeds)
            return Work(kind, ("compare", *users, *options, "--out", "{place}/r"))
        if kind == "reproduce":
            options = ("--embedded", "--rounds", "2", "--seeds", "0", "--json", "--algorithms")
            options += ("fedavg,local", "--only", "emnist-label-shift")
            return Work(kind, ("reproduce", "table1", *options, "--out", "{place}/r"), again=())
        seconds = choose(("0", "1000"))
        command = ("run", *users, "--rounds", "5", "--checkpoint-seconds", seconds)
        command += ("--out", "{place}/r", "-a")
        if kind == "run":
            return Work(kind, (*command, label))
        if kind == "fresh":
            self.old = Work(kind, (*command, "local"))
            self.undisturbed(self.old)
            return Work(kind, (*command, label), label, replaces=self.places[self.old.command])
        start = processes.run_ranks if kind == "ranks" else processes.run_launched
        return Work(kind, (*command, choose(SHARED)), start=start, ranks=2)

    def moment(self, work, place, counts):
        """When, where and by what the work is stopped."""
        choose, rank = self.random.choice, self.random.randrange(work.ranks)
        where, signals, to = choose(WHERE), choose(SIGNALS), "self"
        number = self.random.randint(1, max(1, int(0.7 * counts[rank][where])))
        if work.kind == "ranks":
            to = choose(("self", "all"))
        elif work.kind == "torchrun" and signals != ("KILL",):
            to, signals = choose(("self", "launcher")), signals[:1]
        stop = Stop(where, number, signals, str(place / "fired"), self.random.randint(1, 150), to)
        return replace(stop, pids=str(place / "pids")), rank


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stops", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--plain", action="store_true", help="no tracing, which takes long")
    asked = parser.parse_args()
    processes.prepare_to_fork()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kinds = tuple(asked.kinds.split(","))
        campaign = Campaign(Path(folder), asked.seed, kinds, asked.plain)
        good = campaign.stops(asked.stops)
        total = sum(campaign.seen.values())
        for i, what in enumerate(("kind", "signals", "place")):
            counts = Counter()
            for key, count in campaign.seen.items():
                counts[key[i]] += count
            print(f"{what}: {', '.join(f'{word} {n}' for word, n in sorted(counts.items()) if n)}")
        print(f"{good} of {total} in {time.monotonic() - began:.0f} s")
    sys.exit(good != total)


if __name__ == "__main__":
    main()
