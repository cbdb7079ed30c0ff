"""``run.json``: what decides a run's numbers, and where it was made."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ucfl import distributed
from ucfl.federation import Federation
from ucfl.measure import Measure
from ucfl.runs.configuration import Configuration
from ucfl.runs.files import write_atomically
from ucfl.runs.folder import CONFIGURATION, read_configuration
from ucfl.runs.record import COMMAND_LINE, PYTHON
from ucfl.runs.schema import FORMAT, json_digest
from ucfl.users import Users
from ucfl.wireless import Traffic

_on_command_line = False


@contextmanager
def on_command_line() -> Iterator[None]:
    """Runs that are made inside are made by ``ucfl`` and the arguments of this process."""
    global _on_command_line
    before, _on_command_line = _on_command_line, True
    try:
        yield
    finally:
        _on_command_line = before


def _command() -> list[str]:
    """What makes this run; of a person's own program its name alone, of a notebook nothing."""
    if _on_command_line:
        return [COMMAND_LINE, *sys.argv[1:]]
    file = getattr(sys.modules["__main__"], "__file__", None)
    return [PYTHON, *([Path(file).name] if file else [])]


def write_configuration(
    folder: Path,
    configuration: Configuration,
    fed: Federation,
    users: Users,
    start_traffic: Traffic,
    t: int = 0,
) -> None:
    """Write ``run.json``: what to repeat the run with; ``users`` are all of them.

    A run that goes on after round t keeps what it said of the machine that began it; each stretch
    of rounds has an entry under ``sessions``.
    """
    packages = ("ucfl", "torch", "numpy", "scikit-learn", "scipy")
    session: dict[str, Any] = {
        "after_round": t,
        "dataset": configuration.scenario.dataset,
        "machine": {
            "device": device_name(fed.device),
            "executor": str(fed.executor),
            "precision": fed.precision,
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
        },
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in packages},
        "command": _command(),
    }
    before = read_configuration(folder) if t else {}
    first = before if before else session
    about: dict[str, Any] = {
        "format": FORMAT,
        "configuration": configuration.identity(),
        "scenario": configuration.scenario.model_dump(mode="json"),
        "algorithm": configuration.algorithm.label,
        "algorithm_facts": asdict(configuration.algorithm),
        "seed": configuration.seed,
        "start_traffic": asdict(start_traffic),
        "users": {
            "names": users.names,
            "source": users.source,
            "groups": None if users.groups is None else users.groups.tolist(),
            "label_counts": None if (counts := users.label_counts()) is None else counts.tolist(),
            "test_sizes": users.test.sizes.tolist(),
            "validation_sizes": users.validation.sizes.tolist(),
            "class_names": users.class_names,
        },
        "input_shape": users.input_shape,
        "input_type": str(users.train.inputs.dtype).removeprefix("torch."),
        "outputs": fed.objective.outputs(users),
        "tensors": fed.rows.shapes,
        "metrics": [asdict(measure) for measure in measures(fed)],
        "parameters": fed.rows.size,
        "model_bytes": fed.rows.bytes,
        "processes": distributed.ranks(),
        "probe": configuration.probe,
        **{word: first[word] for word in ("machine", "versions", "command")},
        "sessions": [*before.get("sessions", []), session],
    }
    about["sha256"] = json_digest(about)
    # Lists of numbers on one line each: a user's labels would fill a screen. Only the encoder's own
    # line breaks can match, since those inside names are escaped.
    text = re.sub(
        r"\[\n[\s\d,.e+-]+\]", lambda m: " ".join(m[0].split()), json.dumps(about, indent=2)
    )
    write_atomically(folder / CONFIGURATION, lambda path: path.write_text(text + "\n"))


def measures(fed: Federation) -> list[Measure]:
    """The metrics of a federation's objective, without their functions."""
    found = fed.objective.measured.items()
    return [Measure(name, one.more_is_better, one.percent) for name, one in found]


def device_name(device: torch.device) -> str:
    """The GPU's own name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
