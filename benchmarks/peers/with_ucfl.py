"""A round of ucfl: `FedAvg.round` of a `Federation`, all users stacked, with default options.

Measured: local training of all users and the average. ucfl draws every batch order anew in every
round and converts its images from bytes in every batch; momentum starts at zero in every round.
Under torchrun (`torchrun --nproc-per-node 2 with_ucfl.py`) the users are shared out to processes.
Not comparable: users share a process and nothing is serialised, since there is no network to
simulate. ucfl has no `torch.optim` optimiser, so its steps are what its schedule says.
"""

from __future__ import annotations

import work

from ucfl import Federation, LocalTraining, Users
from ucfl.algorithms import find
from ucfl.collaboration import shards
from ucfl.runs import processes


def main() -> None:
    chosen = work.arguments()
    images, labels = work.arrays(chosen.users, chosen.examples)
    data = list(zip(images, labels, strict=True))
    held = [(x[:1], y[:1]) for x, y in data]  # asked for, never looked at
    processes.join()
    users = processes.my_users(Users.from_arrays(data, held, held, classes=work.CLASSES))
    training = LocalTraining(lr=work.LR, momentum=work.MOMENTUM, batch=work.BATCH, epochs=1)
    fed = Federation(users, work.lenet5(), training=training, device=chosen.device)
    fedavg = find("fedavg")
    state = fedavg.start(fed)
    marks = [work.now()]
    for t in range(1, chosen.rounds + 1):
        state = fedavg.round(fed, state, t)
        marks.append(work.now())
    steps = int(shards.gathered(fed.steps_of(training)).sum())
    weights = list(fed.module(fedavg.models(state)[0]).parameters())
    if processes.is_first():
        work.report("ucfl", "ucfl", chosen, marks, steps, weights, processes=shards.ranks())
    processes.leave()


if __name__ == "__main__":
    main()
