"""A round of Flower's simulation engine: ServerApp, ClientApp, FedAvg, `run_simulation` on Ray.

Measured: from the end of one aggregation to the end of the next, that is sampling, messages,
training in one actor for each core (num_cpus=1), replies and the weighted average (all users have
the same weight). `fraction_evaluate=0` switches evaluation off. The client is the quickstart's
(a model, the arrays loaded into it, SGD, the arrays sent back) with two things in its favour:
each actor keeps the images as float tensors, and batches are cut from a random permutation instead
of passing through a DataLoader.
Not comparable: Flower serialises models and polls for messages every 0.1 s, as it would over a
network, and its clients are separate processes; it is made to move to real devices unchanged.
Since 1.41 `run_simulation` says that `flwr run` will replace it; both start the same engine, and
`flwr run` needs an app folder and a command line around it.
"""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from collections.abc import Iterable
from typing import Any

import torch
import work
from flwr.app import (
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Timed(FedAvg):
    """FedAvg that looks at the clock, and at how many steps the clients say they took."""

    def __init__(self, marks: list[float], steps: list[float], **options: Any) -> None:
        super().__init__(**options)
        self.marks, self.steps = marks, steps

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        self.marks.append(work.now())
        told = [reply.content["metrics"]["steps"] for reply in replies if reply.has_content()]
        self.steps.append(sum(told))
        return result


def main() -> None:
    chosen = work.arguments()
    users, examples, device, rounds = chosen.users, chosen.examples, chosen.device, chosen.rounds
    client, server = ClientApp(), ServerApp()
    marks: list[float] = []
    steps: list[float] = []
    final: list[torch.Tensor] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        user = int(context.node_config["partition-id"])
        inputs, labels = work.tensors(users, examples, device)
        model = work.lenet5()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.to(device).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=work.LR, momentum=work.MOMENTUM)
        taken = 0
        for batch in torch.randperm(examples, device=device).split(work.BATCH):
            optimiser.zero_grad()
            outputs = model(inputs[user, batch])
            torch.nn.functional.cross_entropy(outputs, labels[user, batch]).backward()
            optimiser.step()
            taken += 1
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": examples, "steps": taken}),
            }
        )
        return Message(content=content, reply_to=message)

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = Timed(
            marks,
            steps,
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=users,
            min_available_nodes=users,
        )
        marks.append(work.now())
        arrays = ArrayRecord(work.lenet5().state_dict())
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        final.extend(result.arrays.to_torch_state_dict().values())

    on_gpu = device.startswith("cuda")
    resources = {"num_cpus": 1, "num_gpus": 1 / chosen.per_gpu if on_gpu else 0.0}
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=users,
        backend_config={
            "client_resources": resources,
            "init_args": {"num_cpus": len(os.sched_getaffinity(0)), "log_to_driver": False},
        },
    )
    if len(set(steps)) != 1:
        raise SystemExit(f"Flower: steps in each round {steps}")
    work.report("Flower", "flwr", chosen, marks, steps[0], final)


if __name__ == "__main__":
    main()
