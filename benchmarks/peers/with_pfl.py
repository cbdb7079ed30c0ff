"""A round of Apple's pfl: `FederatedAveraging` on a `SimulatedBackend`, users one after another.

Measured: from the end of one central iteration to the end of the next: the cohort (all users, each
once), local training, model differences summed, the average applied by a central SGD with lr 1.
pfl evaluates in iteration 0 whatever it is told, and the first round is not counted anyway.
Under torchrun (`torchrun --nproc-per-node 2 with_pfl.py`) the users are shared out to processes,
which is pfl's documented way to use more cores; each process then takes its share of the cores.
The images are float tensors already. pfl takes a user's batches in a fixed order (less work than a
permutation).
Not comparable: pfl carries weighted metrics and leaves room for privacy mechanisms, none in use.
"""

from __future__ import annotations

import os
import sys

CHOSEN_ON_CPU = "--device" in sys.argv and sys.argv[sys.argv.index("--device") + 1] == "cpu"
if CHOSEN_ON_CPU:
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # read when pfl is imported

import torch  # noqa: E402
import work  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


class Net(torch.nn.Module):
    """LeNet-5 with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = work.lenet5()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.train()
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        loss = torch.nn.functional.cross_entropy(self(x), y, reduction="sum")
        return {"loss": Weighted(loss.item(), len(y))}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.marks.append(work.now())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.marks.append(work.now())
        return False, Metrics()


def main() -> None:
    chosen = work.arguments()
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if chosen.users % processes:
        raise SystemExit("pfl: as many users for every process, please")
    if processes > 1 and not chosen.threads:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes))
    inputs, labels = work.tensors(chosen.users, chosen.examples, chosen.device)
    net = Net()
    model = PyTorchModel(
        net,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(
            parameters, lr=lr, momentum=work.MOMENTUM
        ),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset((inputs[user], labels[user]), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(chosen.users))),
    )
    backend = SimulatedBackend(training_data=data, val_data=data)
    clock, steps = Clock(), work.Steps()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=chosen.rounds,
            evaluation_frequency=chosen.rounds + 1,
            train_cohort_size=chosen.users,
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_batch_size=work.BATCH, local_num_epochs=1, local_learning_rate=work.LR
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", 0)) > 0:
        return
    per_round = (steps.count / chosen.rounds - 1) * processes  # one step is the central optimiser's
    weights = list(net.parameters())
    work.report("pfl", "pfl", chosen, clock.marks, per_round, weights, processes=processes)


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
