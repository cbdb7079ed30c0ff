"""All of it on one machine: a server and its users as real processes, from keys to a table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from ucfl import algorithms
from ucfl.deploy.processes import processes
from ucfl.errors import UcflError
from ucfl.runs import Run
from ucfl.runs.claim import is_run
from ucfl.users import Scenario
from ucfl.users.scenarios import to_toml


def demonstrate(
    scenario: Scenario,
    algorithm: str,
    *,
    seed: int,
    work: Path,
    out: Path,
    deadline: float,
    fresh: bool,
    said: Callable[[str], None],
) -> Run:
    """Train a scenario's users, each a process with its own data and key; the run."""
    if not algorithms.find(algorithm).deployable:
        raise UcflError(f"{algorithm} cannot be deployed; choose another one (docs/deploy.md).")
    if is_run(out) and not fresh:
        raise UcflError(
            f"{out} holds a run; replace it with --fresh, or give --out another folder."
        )
    users = scenario.build(seed)
    names = user_names(len(users))
    with processes(work) as started:
        started.prepare(users, names)
        options = server_options(scenario, algorithm, seed, work, out, deadline)
        server = started.start_server(*options, *(["--fresh"] if fresh else []))
        for name in names:
            started.start_user(name, "--reproducible")
        said(f"a server and {len(names)} users, at {started.address}")
        code = server.wait()
        if code:
            last = [line for line in started.log("server").splitlines() if line.strip()][-1:]
            raise UcflError(f"the server ended with {code}: {' '.join(last)[:300]}")
    return Run.open(out)


def user_names(count: int) -> list[str]:
    """Names that are in the order of users' places."""
    return [f"user-{place:02d}" for place in range(count)]


def server_options(
    scenario: Scenario, algorithm: str, seed: int, work: Path, out: Path, deadline: float
) -> list[str]:
    """What a server is told to train these users with this algorithm."""
    file = work / "scenario.toml"
    file.write_text(to_toml(scenario), encoding="utf-8")
    return [
        str(file), "--algorithm", algorithm, "--seed", str(seed), "--users", str(scenario.users),
        "--out", str(out), "--deadline", str(deadline), "--drawn", shlex.join(sys.argv[1:]),
    ]  # fmt: skip
