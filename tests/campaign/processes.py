"""Processes that are forked from one which has imported everything, and how they end."""

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from moments import Moments

from ucfl.cli import main

#: A process that takes longer hangs: a hundred times what one needs on an idle machine.
PATIENCE = 200.0
#: torchrun's: after the first process has failed, the others have so long to end.
GRACE = 30.0
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


class Wrong(Exception):  # noqa: N818 (what happened)
    """What must never happen."""


@dataclass(frozen=True)
class Ended:
    """How processes ended: exit codes (negative for a signal), whether they were stopped."""

    codes: tuple[int, ...]
    said: str
    counts: tuple[dict[str, int], ...]
    stopped: bool


def run(place, arguments, stop=None, rank=0, prepare=None):
    """The command line in one process; how it ends."""
    return run_together(place, arguments, 1, stop=stop, prepare=prepare)


def run_together(place, arguments, count, *, stop=None, prepare=None):
    """The same command in several processes that know nothing of each other.

    ``prepare`` is called in each, with its number, before the command line.
    """
    _clear(place)
    pids = [_forked(place, arguments, stop, {}, number, prepare) for number in range(count)]
    return _ended(place, pids, together=False)


def run_ranks(place, arguments, stop=None, rank=0, prepare=None):
    """The same in two processes that share the users, as torchrun would start them."""
    _clear(place)
    shared, pids = _two_ranks(), []
    for r in (0, 1):
        mine, environment = stop if r == rank else None, {**shared, "RANK": str(r)}
        pids.append(_forked(place, arguments, mine, environment, r, prepare))
    return _ended(place, pids)


def run_alone(place, arguments, rank, prepare=None):
    """One of two ranks; the other never comes."""
    _clear(place)
    environment = {**_two_ranks(), "RANK": str(rank)}
    return _ended(place, [_forked(place, arguments, None, environment, rank, prepare)])


def run_launched(place, arguments, stop=None, rank=0):
    """The same, started by torchrun itself."""
    _clear(place)
    stops = {} if stop is None else {str(rank): asdict(stop)}
    driver = Path(__file__).parent / "stopped.py"
    command = [sys.executable, *TORCHRUN, str(driver), json.dumps(stops), *map(str, arguments)]
    with (place / "said").open("w") as said:
        launcher = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    try:
        code = launcher.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        raise Wrong(f"torchrun hangs: {_said(place)}") from None
    return Ended((code,), _said(place), (), (place / "fired").exists())


def prepare_to_fork():
    """So that forked processes compute, and are stopped, wherever this one was started."""
    torch.set_num_threads(1)  # a process with threads cannot be forked
    # A shell starts background jobs with SIGINT ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def learn_imports(place):
    """Import what a process imported on its way, so that the next ones need not."""
    for name in (place / "imported").read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _two_ranks():
    """What torchrun would tell both of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _clear(place):
    place.mkdir(exist_ok=True)
    (place / "pids").mkdir(exist_ok=True)
    for file in [*place.glob("said*"), *place.glob("counts*"), *(place / "pids").iterdir()]:
        file.unlink()
    (place / "fired").unlink(missing_ok=True)


def _forked(place, arguments, stop, environment, number, prepare):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.environ.update(environment)
        log = os.open(place / f"said-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        (place / "pids" / str(os.getpid())).touch()
        sys.argv = ["ucfl", *map(str, arguments)]
        if prepare:
            prepare(number)
        moments = Moments(stop)
        if stop:
            moments.start()
        try:
            main()
        finally:
            sys.setprofile(None)
            sys.settrace(None)
            (place / f"counts-{number}").write_text(json.dumps(moments.counts))
            (place / "imported").write_text("\n".join(sys.modules))
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _ended(place, pids, together=True):
    codes, began, told = {}, time.monotonic(), None
    while True:
        for pid in [pid for pid in pids if pid not in codes]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if len(codes) == len(pids):
            break
        now, rest = time.monotonic(), [pid for pid in pids if pid not in codes]
        if together and told is None and any(codes.values()):  # as torchrun does
            told = now
            for pid in rest:
                os.kill(pid, signal.SIGTERM)
        if now - began > PATIENCE or (told is not None and now - told > GRACE):
            for pid in rest:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise Wrong(f"a process hangs: {_said(place)}")
        time.sleep(0.005)
    counts = tuple(json.loads(file.read_text()) for file in sorted(place.glob("counts*")))
    stopped = (place / "fired").exists()
    return Ended(tuple(codes[pid] for pid in pids), _said(place), counts, stopped)


def _said(place):
    return "\n".join(file.read_text() for file in sorted(place.glob("said*")))
