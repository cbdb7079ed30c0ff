"""A round of fluke: `FedAVG.run` with its own clients, loaders and channel, all in this process.

Measured: from the start to the end of a round as fluke tells its observers: broadcast, the clients
one after another (FastDataLoader with a shuffle, `Client.fit`), their models received, the average.
Evaluation is switched off (server, locals, pre-fit and post-fit). `persistency=False`, as its
documentation asks where clients are stateless: momentum starts at zero in every round, as in ucfl.
The images are float tensors already, so that fluke converts nothing.
Not comparable: fluke counts the floats that a message would carry and draws progress bars. Its
`fluke.distr` shares clients out to several GPUs and is not used here.

fluke imports torchvision, and the index has no CPU build of it: `import torchvision` then fails
with "operator torchvision::nms does not exist". Nothing here uses torchvision, so its operators are
declared (never defined) before the import; with a build that works, nothing is declared.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import work


def torchvision_without_operators() -> object:
    """Import torchvision where its compiled operators cannot be loaded; keep what this returns."""
    try:
        importlib.import_module("torchvision")
        return None
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
    return library


LIBRARY = torchvision_without_operators()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Clock(FederationObserver):
    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []

    def start_round(self, round: int, global_model: Any) -> None:  # noqa: A002 (fluke's name)
        self.starts.append(work.now())

    def end_round(self, round: int) -> None:  # noqa: A002 (fluke's name)
        self.ends.append(work.now())


def main() -> None:
    chosen = work.arguments()
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device(chosen.device)
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    inputs, labels = work.tensors(chosen.users, chosen.examples, chosen.device)
    loaders = [
        FastDataLoader(x, y, num_labels=work.CLASSES, batch_size=work.BATCH, shuffle=True)
        for x, y in zip(inputs, labels, strict=True)
    ]
    data = DummyDataContainer(loaders, [None] * chosen.users, None, work.CLASSES)
    settings = DDict(
        client=DDict(
            batch_size=work.BATCH,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.LR, momentum=work.MOMENTUM),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            persistency=False,
        ),
        server=DDict(weighted=True),
        model=work.lenet5(),
    )
    fedavg = FedAVG(chosen.users, DataSplitter(data), settings)
    clock, steps = Clock(), work.Steps()
    fedavg.set_callbacks(clock)
    fedavg.run(n_rounds=chosen.rounds, eligible_perc=1.0)
    weights = list(fedavg.server.model.parameters())
    marks = [clock.starts[0], *clock.ends]
    per_round = steps.count / chosen.rounds
    work.report("fluke", "fluke-fl", chosen, marks, per_round, weights)


if __name__ == "__main__":
    main()
