"""Is the training step that a GPU would run the same in two versions? Needs no GPU.

Run with: python benchmarks/graphs.py OLD_SRC
The step of each of the benchmarks' models is traced as for a GPU in both versions (OLD_SRC is the
folder ``src`` of the other one), and compared operation by operation with the shapes of results.
Equal graphs are the same kernels in the same order, so their speed on a GPU is the same. A model
that cannot be traced so without a GPU is said to be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MODELS = ("lenet5", "vgg", "residual", "mlp")


class _TracedError(Exception):
    """The step's graph is there."""


def operations(name: str) -> list[str]:
    """The operations of a model's step with the shapes of their results; empty if not traced."""
    from engine import TRAINING, model_of
    from side_by_side import random_users

    from ucfl import Federation
    from ucfl.execution import choice, marks, stacked, tracing

    marks.GPU, choice.WORTH_TRACING = "cpu", 0
    made: list[Any] = []
    make, trace = tracing.make_graph, tracing.trace

    def kept(*arguments: Any) -> Any:
        made.append(make(*arguments))
        return made[-1]

    def stopped(*arguments: Any, **options: Any) -> Any:
        found = trace(*arguments, **options)
        if len(made) == 2:  # the draw of batches, and the step
            raise _TracedError
        return found

    tracing.make_graph, stacked.trace = kept, stopped  # type: ignore[assignment]
    try:
        fed = Federation(random_users(4, 128), model_of(name), training=TRAINING, chunk=4)
        fed.train(fed.initial(), 1)
    except _TracedError:
        nodes = made[-1].graph.nodes
        return [f"{n.target} {tuple(getattr(n.meta.get('val'), 'shape', ()))}" for n in nodes]
    finally:
        tracing.make_graph, stacked.trace = make, trace  # type: ignore[assignment]
    return []


def of(source: str) -> dict[str, list[str]]:
    """Every model's operations in a version."""
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", __file__, "--print"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(printed.stdout.splitlines()[-1])
    return found


def main(old: str) -> None:
    versions = of(old), of(str(Path(__file__).parent.parent / "src"))
    for name in MODELS:
        before, after = (each[name] for each in versions)
        same = "the same" if before == after else "NOT the same"
        known = f"{len(after)} operations, {same}" if after else "not traced without a GPU"
        print(f"{name}: {known}")


if __name__ == "__main__":
    if sys.argv[1] == "--print":
        print(json.dumps({name: operations(name) for name in MODELS}))
    else:
        main(sys.argv[1])
