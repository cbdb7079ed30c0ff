"""Local training as anyone would write it: a module, a loop, torch.optim.SGD.

Shares nothing with the engine but the order of the examples, which is an input.
"""

import copy

import torch
from torch import nn


def train_one_user(model, row, inputs, labels, order, batch, lr, momentum, pull=None):
    """SGD over ``order`` ([epochs, n] indices), last batch short; returns the new flat state."""
    model = copy.deepcopy(model)
    load(model, row)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for epoch in order:
        for start in range(0, len(epoch), batch):
            chosen = epoch[start : start + batch]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            if pull is not None:
                loss = loss + pull(model)
            loss.backward()
            optimiser.step()
    return flat(model)


def flat(model):
    tensors = [*model.parameters(), *model.buffers()]
    return torch.cat([t.detach().reshape(-1).to(tensors[0].dtype) for t in tensors])


def load(model, row):
    offset = 0
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            values = row[offset : offset + tensor.numel()].view(tensor.shape)
            tensor.copy_(values if tensor.is_floating_point() else values.round())
            offset += tensor.numel()
