"""Recurrent layers as loops over time: PyTorch's own numbers, and its parameters' names."""

import copy

import pytest
import torch
from torch import nn

from ucfl.federation.recurrent import Unrolled

OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "batch_first": True},
    {"num_layers": 3, "batch_first": True, "bidirectional": True},
]
LAYERS = [
    *((kind, options) for kind in (nn.RNN, nn.LSTM, nn.GRU) for options in OPTIONS),
    (nn.RNN, {"nonlinearity": "relu"}),
    (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
]


def states(layer, batch):
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.randn(count, *batch, layer.proj_size or layer.hidden_size).double()
    if layer.mode != "LSTM":
        return hidden
    return hidden, torch.randn(count, *batch, layer.hidden_size).double()


@pytest.mark.parametrize(("kind", "options"), LAYERS, ids=str)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("batch", [(4,), ()], ids=["batch", "unbatched"])
def test_outputs_states_and_gradients_are_pytorchs(kind, options, given, batch):
    torch.manual_seed(0)
    theirs = kind(3, 5, **options).double()
    ours = Unrolled(copy.deepcopy(theirs))
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    first = (7, *batch, 3) if not options.get("batch_first") else (*batch, 7, 3)
    x = torch.randn(first).double()
    hidden = states(theirs, batch) if given else None
    results = []
    for layer in (ours, theirs):
        y, last = layer(x, hidden)
        ends = last if isinstance(last, tuple) else (last,)
        loss = (y.sin()).sum() + sum((end.cos()).sum() for end in ends)
        results.append((y, *ends, *torch.autograd.grad(loss, list(layer.parameters()))))
    for mine, reference in zip(*results, strict=True):
        assert mine.shape == reference.shape
        assert torch.allclose(mine, reference, atol=1e-12)


def test_packed_sequences_are_refused():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    with pytest.raises(TypeError, match="pad them"):
        Unrolled(nn.LSTM(3, 5))(packed)
