"""ucfl and each peer in turns, every turn in a new process, each peer in its own environment.

Run with: .venv/bin/python benchmarks/peers/run.py [--repeats 5] [--only "pfl;flower"] [--name NAME]
ucfl runs in the environment that runs this; the peers' are made under benchmarks/peers/.venvs. A
turn is the median of a run's rounds without the first. The order within a pair changes from turn to
turn. What cannot be installed or run is kept with its last words instead of a time. A peer that is
spread over processes meets ucfl in one process and, with --alike, in as many.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from side_by_side import RESULTS, entry, machine  # noqa: E402


@dataclass(frozen=True)
class Contestant:
    """A script, the environment that it runs in, and how its work is spread over the cores."""

    environment: str
    requirements: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    processes: int = 1


CORES = len(os.sched_getaffinity(0))
FLOWER, FLUKE, PFL = ("flwr[simulation]", "torch"), ("fluke-fl",), ("pfl[pytorch]",)
PEERS = {
    "flower": Contestant("flower", FLOWER),
    "fluke": Contestant("fluke", FLUKE),
    "fluke, 1 thread": Contestant("fluke", FLUKE, ("--threads", "1")),
    "pfl": Contestant("pfl", PFL),
    "pfl, 1 thread": Contestant("pfl", PFL, ("--threads", "1")),
    f"pfl, {CORES} processes": Contestant("pfl", PFL, ("--threads", "1"), CORES),
}


class Failed(Exception):  # noqa: N818 (it is kept, not raised to anybody)
    """A program that failed, why, and what it had printed until then."""

    def __init__(self, why: str, out: str = "") -> None:
        super().__init__(why)
        self.out = out


def call(command: list[str], seconds: float) -> str:
    """The standard output; what the program started ends with it."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    process = subprocess.Popen(
        command,
        cwd=HERE,
        env={**os.environ, **quiet},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
        raise Failed(f"no result within {seconds:.0f} s") from None
    if process.returncode:
        raise Failed((errors.strip().splitlines() or ["no words"])[-1], out)
    return out


def python_of(one: Contestant) -> str:
    """The interpreter of a contestant's environment, which is made where it is not there yet."""
    if not one.requirements:
        return sys.executable
    folder = HERE / ".venvs" / one.environment
    python, done = str(folder / "bin" / "python"), folder / "installed"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "-c", str(HERE / "constraints.txt")]
        call([*pip, *one.requirements], 1800)
        done.touch()
    return python


def turn(one: Contestant, sizes: list[str], seconds: float) -> dict[str, Any]:
    """One run of a contestant's script: what it printed, and how busy the machine was.

    A time that was printed counts, also of a program that dies after it: two Gloo processes may.
    """
    command = [python_of(one)]
    if one.processes > 1:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={one.processes}"]
    load = os.getloadavg()[0]
    died = None
    try:
        out = call([*command, f"with_{one.environment}.py", *sizes, *one.options], seconds)
    except Failed as failure:
        out, died = failure.out, failure
    lines = [line for line in out.splitlines() if line.startswith('{"library"')]
    if not lines:
        raise died or Failed("it printed no result")
    return {**json.loads(lines[-1]), "load": round(load, 2), "died": died is not None}


def measured(
    name: str, sizes: list[str], repeats: int, seconds: float, alike: bool
) -> dict[str, Any]:
    """A peer's entry: ucfl and it by turns."""
    peer = PEERS[name]
    ours_alike = Contestant("ucfl", (), peer.options, peer.processes)
    pair = {"ucfl": ours_alike if alike else Contestant("ucfl"), name: peer}
    turns: dict[str, list[dict[str, Any]]] = {"ucfl": [], name: []}
    for repeat in range(repeats):
        for who in list(pair)[:: -1 if repeat % 2 else 1]:
            turns[who].append(turn(pair[who], sizes, seconds))
            print(who, turns[who][-1]["seconds_per_round"], flush=True)
    times = {who: [one["seconds_per_round"] for one in ones] for who, ones in turns.items()}
    ours, theirs = turns["ucfl"][-1], turns[name][-1]
    more = {key: theirs[key] for key in ("examples", "rounds", "steps_per_round", "device")}
    return entry(
        "ucfl",
        name,
        theirs["users"],
        times,
        **more,
        versions={one["library"]: one["version"] for one in (ours, theirs)}
        | {"torch": [ours["torch"], theirs["torch"]]},
        processes=[pair["ucfl"].processes, peer.processes],
        moved=[ours["moved"], theirs["moved"]],
        died_after_it=[sum(one["died"] for one in turns[who]) for who in pair],
        all_seconds=times["ucfl"],
        all_seconds_against=times[name],
        load=[one["load"] for one in turns["ucfl"] + turns[name]],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", help=f"some of: {'; '.join(PEERS)} (with ; between)")
    parser.add_argument("--alike", action="store_true", help="ucfl with its peer's options")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", help="of the file of results (default: peers-DEVICE)")
    parser.add_argument("--seconds", type=float, default=300, help="that a turn may take")
    parser.add_argument("--note", default="", help="what a reader of the results should know")
    chosen = parser.parse_args()
    names = [name.strip() for name in chosen.only.split(";")] if chosen.only else list(PEERS)
    if unknown := set(names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(unknown)}; there are {'; '.join(PEERS)}")
    sizes = [f"--{key}={getattr(chosen, key)}" for key in ("users", "examples", "rounds", "device")]
    entries: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    result = {
        "command": " ".join(["python benchmarks/peers/run.py", *map(repr_of, sys.argv[1:])]),
        "machine": {**machine(), "load_before": os.getloadavg()},
        "note": chosen.note,
        "entries": entries,
        "failures": failures,
    }
    folder = Path(os.environ.get("OUT", RESULTS))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{chosen.name or f'peers-{chosen.device}'}.json"
    for name in names:
        try:
            entries.append(measured(name, sizes, chosen.repeats, chosen.seconds, chosen.alike))
            print(json.dumps(entries[-1]), flush=True)
        except Failed as failure:
            failures[name] = str(failure)
            print(f"{name}: {failure}", flush=True)
        # Each as it comes: a GPU's time may be short.
        file.write_text(json.dumps(result, indent=1) + "\n")


def repr_of(word: str) -> str:
    """A word of the command line as a shell takes it."""
    return f'"{word}"' if " " in word or ";" in word else word


if __name__ == "__main__":
    main()
