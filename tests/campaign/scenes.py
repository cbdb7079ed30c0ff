"""Situations between several processes, each a function that asserts what must hold.

usage: scenes.py [NAME]…, which prints a JSON object: the name of each scene and its error, if any.
Processes are forked from this one, which has imported everything (pytest's own may have threads).
"""

import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import processes
import torch
import works

from ucfl import distributed
from ucfl.algorithms.fedavg import FedAvg
from ucfl.paper import reproduce
from ucfl.runs import claim, lock
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.files import NotWritten
from ucfl.runs.lock import held
from ucfl.runs.loop import Loop
from ucfl.users import datasets

CPU = torch.device("cpu")


def run_command(folder, rounds, *more, out="r"):
    command = ["run", folder / "data", "--model", "mlp", "--set", "batch=4", "--json", "--rounds"]
    command += [rounds, "--plain", "--checkpoint-seconds", 0, "--out", folder / out, *more]
    return [str(word) for word in command]


def reproduce_command(folder):
    command = "reproduce table1 --embedded --rounds 2 --seeds 0 --algorithms fedavg --json --only"
    return [*command.split(), "emnist-label-shift", "--out", str(folder / "r")]


def shared(folder, out, rounds):
    """A finished run of two processes."""
    ended = processes.run_ranks(folder / "processes", run_command(folder, rounds, out=out))
    assert ended.codes == (0, 0), ended.said
    return folder / out


def rounds_stored(folder):
    """Of both processes' checkpoints and of those before them."""
    files = [folder / "checkpoint.safetensors", folder / "checkpoint-1of2.safetensors"]
    every = [(file, before(file)) for file in files]
    return [[Checkpoint.read(f, CPU).round for f in pair if f.exists()] for pair in every]


def compose(folder, first, second):
    """A run of two processes whose checkpoints are of these rounds: the newest, the one before."""
    shutil.copytree(folder / f"rounds-{first[0]}", folder / "r")
    for name, rounds in (("checkpoint", first), ("checkpoint-1of2", second)):
        for t, end in zip(rounds, ("", "-before"), strict=False):
            source = folder / f"rounds-{t}" / f"{name}.safetensors"
            shutil.copy(source, folder / "r" / f"{name}{end}.safetensors")


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


# --- processes that share a run -------------------------------------------------------------------


def ranks_with_checkpoints_of_different_rounds_go_on_from_the_common_one(folder):
    for t in (2, 3, 4, 6):
        shared(folder, f"rounds-{t}", t)
    compose(folder, (3, 2), (4, 3))
    place, again = folder / "processes", run_command(folder, 6, "--resume")

    def killed_when_the_other_has_stored_the_next_round(rank):
        if rank == 0:
            Checkpoint.save = kill

    ended = processes.run_ranks(
        place, again, prepare=killed_when_the_other_has_stored_the_next_round
    )
    assert ended.codes[0] == -signal.SIGKILL, ended.said
    assert rounds_stored(folder / "r") == [[3, 2], [4, 3]]
    ended = processes.run_ranks(place, again)
    assert ended.codes == (0, 0), ended.said
    assert works.left(folder / "r") == works.left(folder / "rounds-6")


def ranks_killed_before_one_has_stored_its_last_round_go_on(folder):
    """The first has finished only when all have: its checkpoint before is needed until then."""
    place, whole = folder / "processes", shared(folder, "whole", 3)

    def killed_in_the_third_round(rank):
        original, saves = Checkpoint.save, []

        def save(point, file):
            saves.append(file)
            if rank == 1 and len(saves) == 3:
                kill()
            original(point, file)

        Checkpoint.save = save

    command = run_command(folder, 3)
    ended = processes.run_ranks(place, command, prepare=killed_in_the_third_round)
    assert ended.codes[1] == -signal.SIGKILL, ended.said
    assert "Traceback" not in ended.said
    assert [rounds[0] for rounds in rounds_stored(folder / "r")] == [2, 2]
    assert processes.run_ranks(place, [*command, "--resume"]).codes == (0, 0)
    assert works.left(folder / "r") == works.left(whole)


def ranks_of_which_one_cannot_write_its_last_round_have_none_that_has(folder):
    def full_in_the_third_round(rank):
        original, tempfile.tempdir = Checkpoint.save, str(folder)

        def save(point, file):
            if rank == 1 and point.round == 3:
                raise NotWritten("the disk is full; free some space.")
            original(point, file)

        Checkpoint.save = save

    place = folder / "processes"
    ended = processes.run_ranks(place, run_command(folder, 3), prepare=full_in_the_third_round)
    assert ended.codes == (2, 2), ended.said
    assert ended.said.count("the disk is full; the run's 3 rounds are in ") == 1, ended.said
    assert rounds_stored(folder / "r") == [[2, 1], [2, 1]]


def ranks_without_a_common_round_say_so(folder):
    for t in (2, 3, 4):
        shared(folder, f"rounds-{t}", t)
    compose(folder, (2,), (4, 3))
    ended = processes.run_ranks(folder / "processes", run_command(folder, 4, "--resume"))
    assert ended.codes == (2, 2), ended.said
    assert ended.said.count("have no round in common; start the run again with --fresh.") == 1


def ranks_of_different_seeds_are_refused(folder):
    def seeds(rank):
        sys.argv += ["--seed", str(rank)]

    ended = processes.run_ranks(folder / "processes", run_command(folder, 2), prepare=seeds)
    assert ended.codes == (2, 2), ended.said
    assert ended.said.count("started with different settings (seed, ") == 1, ended.said
    assert "Traceback" not in ended.said
    assert not (folder / "r").exists()


def ranks_on_a_folder_in_use_are_refused(folder):
    with held(folder / "r"):
        ended = processes.run_ranks(folder / "processes", run_command(folder, 2))
    assert ended.codes == (2, 2), ended.said
    assert ended.said.count(f"is in use by process {os.getpid()} on ") == 1
    assert "Traceback" not in ended.said


def signalled(place, signals):
    """The first process sends them to all in its second round: the last after its evaluation."""

    def send(due):
        for number, file in itertools.product(due, (place / "pids").iterdir()):
            os.kill(int(file.name), number)

    def prepare(rank):
        evaluate = Loop._evaluated

        def evaluated(loop, point):
            due = signals if rank == 0 and point.round == 2 else ()
            send(due[:-1])
            found = evaluate(loop, point)
            if due:
                time.sleep(0.2)  # the other one has said by now that nobody asked it to stop
            send(due[-1:])
            return found

        Loop._evaluated = evaluated

    return prepare


def ranks_that_are_terminated_stop_after_the_same_round(folder):
    """As SIGTERM to torchrun, or Ctrl-C at a terminal, reaches them: when they are apart."""
    place, whole = folder / "processes", shared(folder, "whole", 4)
    for signals in ((signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)):
        prepare = signalled(place, signals)
        ended = processes.run_ranks(place, run_command(folder, 4), prepare=prepare)
        assert ended.codes == (130, 130), ended.said
        assert [rounds[0] for rounds in rounds_stored(folder / "r")] == [2, 2]
        assert processes.run_ranks(place, run_command(folder, 4, "--resume")).codes == (0, 0)
        assert works.left(folder / "r") == works.left(whole)
        shutil.rmtree(folder / "r")


def a_rank_that_is_terminated_while_it_waits_for_the_others_ends(folder):
    """At once: the wait is one call of PyTorch's, in which no Python handler runs."""
    for rank, number in ((0, signal.SIGTERM), (1, signal.SIGINT)):

        def terminated_in_a_moment(_, number=number):
            join = torch.distributed.init_process_group

            def joining(*arguments):
                threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
                join(*arguments)

            torch.distributed.init_process_group = joining

        ended = processes.run_alone(
            folder / "processes", run_command(folder, 2), rank, terminated_in_a_moment
        )
        assert ended.codes == (-number,), ended.said
        assert not (folder / "r").exists()


# --- processes on one folder ----------------------------------------------------------------------


def at_once(folder, count, command, refused=2):
    """All processes ask for the folder at the same time; who trains waits until all have asked.

    The others say who has it, and end with ``refused``.
    """
    ready = multiprocessing.get_context("fork").Barrier(count)
    told, tell = os.pipe()
    wait, go = os.pipe()
    if not os.fork():  # reads that each has trained or ended, and lets those who train go on
        for _ in range(count):
            os.read(told, 1)
        os._exit(0)
    os.close(go)

    def prepare(number):
        ask, train, leave, said = lock.held, FedAvg.round, distributed.leave, []

        def asked(*arguments):
            claim.held = reproduce.held = ask
            ready.wait()
            return ask(*arguments)

        def report():
            if not said:
                said.append(os.write(tell, b"."))

        def trained(*arguments):
            report()
            os.read(wait, 1)
            return train(*arguments)

        def left(**options):
            report()
            leave(**options)

        claim.held = reproduce.held = asked
        FedAvg.round, distributed.leave = trained, left

    ended = processes.run_together(folder / "processes", command, count, prepare=prepare)
    for pipe in (told, tell, wait):
        os.close(pipe)
    os.wait()
    assert sorted(ended.codes) == [0] + [refused] * (count - 1), ended.said
    assert len(re.findall(r"is in use by process \d+ on ", ended.said)) == count - 1, ended.said
    assert "Traceback" not in ended.said
    return ended


def one_of_two_and_of_four_trains(folder):
    assert processes.run(folder / "processes", run_command(folder, 3, out="whole")).codes == (0,)
    for count, more in ((2, ()), (4, ()), (4, ("--fresh",))):
        at_once(folder, count, run_command(folder, 3, *more))
        assert works.left(folder / "r") == works.left(folder / "whole")
        if not more and count == 4:
            continue  # there is a run for --fresh to replace
        shutil.rmtree(folder / "r")


def one_of_two_reproductions_trains_a_cell(folder):
    datasets.load("mnist5k")
    ended = at_once(folder, 2, reproduce_command(folder), refused=0)
    assert ended.said.count("it is left to that process.") == 1
    place = folder / "r" / "embedded-2-rounds"
    assert len(list((place / "cells").iterdir())) == 1
    assert list((place / "unfinished").iterdir()) == []


def a_cell_that_another_process_has_just_kept_is_not_trained_again(folder):
    """It was to do when this process looked, and is there when it has the lock."""
    datasets.load("mnist5k")
    command = reproduce_command(folder)

    def another_first(number):
        ask = reproduce.held

        def held_later(*arguments):
            reproduce.held = ask
            assert processes.run(folder / "another", command).codes == (0,)
            FedAvg.round = kill
            return ask(*arguments)

        reproduce.held = held_later

    ended = processes.run_together(folder / "processes", command, 1, prepare=another_first)
    assert ended.codes == (0,), ended.said


SCENES = (
    ranks_with_checkpoints_of_different_rounds_go_on_from_the_common_one,
    ranks_killed_before_one_has_stored_its_last_round_go_on,
    ranks_of_which_one_cannot_write_its_last_round_have_none_that_has,
    ranks_without_a_common_round_say_so,
    ranks_of_different_seeds_are_refused,
    ranks_on_a_folder_in_use_are_refused,
    ranks_that_are_terminated_stop_after_the_same_round,
    a_rank_that_is_terminated_while_it_waits_for_the_others_ends,
    one_of_two_and_of_four_trains,
    one_of_two_reproductions_trains_a_cell,
    a_cell_that_another_process_has_just_kept_is_not_trained_again,
)


def main():
    processes.prepare_to_fork()
    errors = {}
    for scene in SCENES:
        if sys.argv[1:] and scene.__name__ not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            works.write_users(Path(folder) / "data")
            if not errors:
                processes.run(Path(folder) / "x", run_command(Path(folder), 1, out="x/r"))
                processes.learn_imports(Path(folder) / "x")
            try:
                scene(Path(folder))
                errors[scene.__name__] = ""
            except Exception:
                errors[scene.__name__] = traceback.format_exc()
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
