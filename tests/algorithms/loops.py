"""What loops written from publications share: users, a model, one user's training."""

import torch

from conftest import make_federation, make_users
from federation.reference import train_one_user
from ucfl.algorithms import find
from ucfl.federation import create
from ucfl.federation.draws import orders

SIZES = [20, 7, 13]
BATCH, LR, MOMENTUM = 8, 0.05, 0.9


def users():
    return make_users(SIZES, groups=[0, 0, 1])


def fed(users):
    return make_federation(users)


def model(users):
    return create("mlp", users.input_shape, users.classes, seed=0).double()


def order_of(users, t, user, epochs=1):
    n = int(users.train.sizes[user])
    return orders(0, t, users.ids, users.train.sizes, epochs, max(SIZES))[user, :, :n]


def local(users, model, row, t, user, pull=None, lr=LR, epochs=1, batch=BATCH, momentum=MOMENTUM):
    x, y = users.train.inputs[user].double(), users.train.targets[user]
    return train_one_user(
        model, row, x, y, order_of(users, t, user, epochs), batch, lr, momentum, pull
    )


def row_of(module):
    return torch.cat([p.reshape(-1) for p in module.parameters()])


def shares():
    return torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)


def after(name, fed, rounds):
    algorithm = find(name)
    state = algorithm.start(fed)
    for t in range(1, rounds + 1):
        state = algorithm.round(fed, state, t)
    return algorithm, state
