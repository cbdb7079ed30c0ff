"""One round of local training by two versions of ucfl, by turns: is the new one as fast?

Run with: python benchmarks/versions.py {cpu|gpu} OLD_SRC [repeats [models]]
OLD_SRC is the ``src`` folder of another checkout (``git worktree add /tmp/old COMMIT``). Each
version has a process of its own, and the two take turns, so that a slow moment of the machine hits
both. The work: 100 users of 1,024 images (20 on a CPU), batch 64, one epoch; on a GPU traced and
compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
MODELS = {"gpu": ["lenet5", "vgg", "residual", "mlp"], "cpu": ["lenet5"]}


def worker(where: str, model: str, compiled: bool) -> None:
    """Train a round whenever a line comes in, and say how long it took."""
    import torch
    from engine import TRAINING, model_of
    from side_by_side import random_users

    from ucfl import Federation

    device, users = ("cuda", 100) if where == "gpu" else ("cpu", 20)
    if where == "gpu":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    fed = Federation(
        random_users(users, 1024),
        model_of(model),
        training=TRAINING,
        device=device,
        compiled=compiled,
    )
    theta = fed.initial()
    for _ in range(2):
        fed.train(theta, 1)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        fed.train(theta, 1)
        if where == "gpu":
            torch.cuda.synchronize()
        print(time.perf_counter() - began, flush=True)


def started(source: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "worker", *arguments],
        env={**os.environ, "PYTHONPATH": f"{source}:{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def turn(process: subprocess.Popen[str], rounds: int) -> float:
    """The shortest of a few rounds of one version."""
    assert process.stdin is not None
    assert process.stdout is not None
    times = []
    for _ in range(rounds):
        process.stdin.write("go\n")
        process.stdin.flush()
        times.append(_number(process.stdout))
    return min(times)


def _number(lines: IO[str]) -> float:
    return float(lines.readline())


def main(where: str, old: str, repeats: int, models: list[str]) -> None:
    from side_by_side import entry, keep

    entries = []
    for model in models or MODELS[where]:
        for compiled in (False, True) if where == "gpu" else (False,):
            sources = {"old": old, "new": str(HERE.parent / "src")}
            both = {
                name: started(source, where, model, str(int(compiled)))
                for name, source in sources.items()
            }
            for process in both.values():
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            times: dict[str, list[float]] = {name: [] for name in both}
            for _ in range(repeats):
                for name, process in both.items():
                    times[name].append(turn(process, 5))
            for process in both.values():
                process.terminate()
            users = 100 if where == "gpu" else 20
            entries.append(entry("new", "old", users, times, model=model, compiled=compiled))
            keep(f"versions-{where}", entries)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(sys.argv[2], sys.argv[3], sys.argv[4] == "1")
    else:
        where, old, *rest = sys.argv[1:]
        main(where, old, int(rest[0]) if rest else 9, rest[1:])
