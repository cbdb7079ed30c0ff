"""Local training as anyone would write it: a module, a loop, torch.optim.SGD.

Shares nothing with the engine but the order of the examples, which is an input.
"""

import copy

import torch
from torch import nn


def batches(epoch, size, last="drop"):
    """One pass in batches of ``size``: a short last one is dropped where a full one exists."""
    parts = [epoch[start : start + size] for start in range(0, len(epoch), size)]
    return parts[:-1] if last == "drop" and len(parts) > 1 and len(parts[-1]) < size else parts


def train_one_user(model, row, inputs, labels, order, batch, lr, momentum, pull=None, last="drop"):
    """SGD over ``order`` ([epochs, n] indices); returns the new flat state."""
    model = copy.deepcopy(model)
    load(model, row)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=lr, momentum=momentum)
    for epoch in order:
        for chosen in batches(epoch, batch, last):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            if last == "scale":
                loss = loss * len(chosen) / batch
            if pull is not None:
                loss = loss + pull(model)
            loss.backward()
            optimiser.step()
    return flat(model)


def tensors(model):
    """All of a row, in its order: trainable parameters, frozen ones, buffers."""
    parameters = list(model.parameters())
    return [
        *(p for p in parameters if p.requires_grad),
        *(p for p in parameters if not p.requires_grad),
        *model.buffers(),
    ]


def flat(model):
    parts = [torch.view_as_real(t) if t.is_complex() else t for t in tensors(model)]
    return torch.cat([t.detach().reshape(-1).to(parts[0].dtype) for t in parts])


def load(model, row):
    offset = 0
    with torch.no_grad():
        for tensor in tensors(model):
            place = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            values = row[offset : offset + place.numel()].view(place.shape)
            place.copy_(values if place.is_floating_point() else values.round())
            offset += place.numel()
