"""Models that people bring and that are hard to compute for many users at once, on 8x8 images."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

CLASSES = 3


class BranchOnWeights(nn.Module):
    """Asks its own parameters what to do, which a trace cannot follow."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 10), nn.Linear(10, CLASSES)

    def forward(self, x):
        h = self.first(x.flatten(1)).tanh()
        return self.last(h) if float(self.last.weight.sum()) > 0 else self.last(-h)


class BranchOnData(nn.Module):
    """Asks the whole batch what to do: padding must not answer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 10), nn.Linear(10, CLASSES)

    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(h.tanh()) if float(h.mean()) > 0 else self.last(h.sin())


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = kind(8, 6, batch_first=True, **options)
        self.last = nn.Linear(
            self.rnn.proj_size or 6 * (2 if self.rnn.bidirectional else 1), CLASSES
        )

    def forward(self, x):
        h, _ = self.rnn(x[:, 0])
        return self.last(h[:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.encoder(x[:, 0]).mean(1))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm, self.again = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x):
        h = F.relu(self.norm(self.stem(x)))
        h = F.relu(h + self.again(self.inner(h)))
        return self.last(h.mean((2, 3)))


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.spread = nn.Conv2d(1, 6, 1)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6, stride=2)
        self.pointwise, self.last = nn.Conv2d(6, 5, 1), nn.Linear(45, CLASSES)

    def forward(self, x):
        h = F.silu(self.depthwise(self.spread(x)))
        return self.last(F.silu(self.pointwise(h)).flatten(1))


class Shared(nn.Module):
    """One layer used twice, and one parameter under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(64, 10), nn.Linear(10, 10)
        self.again, self.last = self.inner, nn.Linear(10, CLASSES)
        self.tied = nn.Linear(10, 10)
        self.tied.weight = self.inner.weight

    def forward(self, x):
        h = self.inner(self.first(x.flatten(1)).tanh()).tanh()
        return self.last(self.tied(self.again(h).tanh()))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(64, 10), nn.BatchNorm1d(10)
        self.last = nn.Linear(10, CLASSES)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.last(self.norm(self.body(x.flatten(1))).tanh())


class Complex(nn.Module):
    """A Fourier transform, and a complex parameter."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(8, 5, dtype=torch.complex128))
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x):
        h = torch.fft.irfft2(torch.fft.rfft2(x[:, 0]) * self.filter, s=(8, 8))
        return self.last(h.flatten(1).tanh())


class InPlace(nn.Module):
    """Writes to its activations, and replaces a buffer instead of writing to it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 10), nn.Linear(10, CLASSES)
        self.register_buffer("steps", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        h = self.first(x.flatten(1))
        h.mul_(0.5)
        h[:, 0] = 0.5
        h += 1
        h = h.tanh()
        if self.training:
            self.steps = self.steps + 1
        return self.last(h) / (1 + 0.1 * self.steps)


class Reversed(torch.autograd.Function):
    """A gradient reversal as it is usually written, which torch.func refuses."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.5 * gradient


class GradientReversal(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 10), nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.last(Reversed.apply(self.first(x.flatten(1)).tanh()))


class Coupled(nn.Module):
    """Subtracts the batch's mean by hand."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 10), nn.Linear(10, CLASSES)

    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last((h - h.mean(0)).tanh())


HARD = {
    "branch on weights": BranchOnWeights,
    "branch on data": BranchOnData,
    "nn.LSTM": lambda: Recurrent(nn.LSTM),
    "nn.LSTM, two layers both ways": lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "nn.LSTM, projected": lambda: Recurrent(nn.LSTM, proj_size=3),
    "nn.GRU": lambda: Recurrent(nn.GRU),
    "nn.RNN": lambda: Recurrent(nn.RNN, nonlinearity="relu", bias=False),
    "transformer": Transformer,
    "ResNet with BatchNorm": ResNet,
    "depthwise": Depthwise,
    "shared layer": Shared,
    "frozen layers": Frozen,
    "complex": Complex,
    "in place": InPlace,
    "gradient reversal": GradientReversal,
    "coupled examples": Coupled,
}


class Draws(nn.Module):
    """Random numbers of the model's own, from a generator that it is given."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.last = draw, nn.Linear(64, CLASSES)

    def forward(self, x):
        h = x.flatten(1)
        return self.last(h + self.draw(h) if self.training else h)


class Counts(nn.Module):
    """A number of its own, which is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, nn.Linear(64, CLASSES)

    def forward(self, x):
        self.calls += 1
        return self.last(x.flatten(1)) * (1 + self.calls % 2)


class Remembers(nn.Module):
    """A hidden state that goes on from batch to batch."""

    def __init__(self):
        super().__init__()
        self.last, self.hidden = nn.Linear(64, CLASSES), None

    def forward(self, x):
        out = self.last(x.flatten(1))
        if self.hidden is not None:
            out = out + self.hidden
        self.hidden = out.detach().mean(0)
        return out


class ShowsItsMean(nn.Module):
    """Writes in training what it reads in evaluation."""

    def __init__(self):
        super().__init__()
        self.last, self.mean = nn.Linear(64, CLASSES), 0.0

    def forward(self, x):
        h = x.flatten(1)
        if self.training:
            self.mean = h.mean(0).detach()
        return self.last(h - self.mean)


class Clamps(nn.Module):
    """Writes to its own parameters."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x):
        self.last.weight.data.clamp_(-0.01, 0.01)
        return self.last(x.flatten(1))


class Rounded(nn.Module):
    """Numbers of embeddings."""

    def forward(self, x):
        return x.abs().clamp(max=8).long()


class Standardised(nn.Module):
    """No number at all for an example of zeros, which padding is made of."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x):
        h = x.flatten(1)
        return self.last((h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True))


class TimeMajor(nn.Module):
    """Asks its layer how it was made; dropout over [time, batch, features]."""

    def __init__(self):
        super().__init__()
        self.rnn, self.drop, self.last = nn.GRU(8, 6), nn.Dropout(0.3), nn.Linear(6, CLASSES)

    def forward(self, x):
        self.rnn.flatten_parameters()
        first = x.new_zeros(self.rnn.num_layers, len(x), self.rnn.hidden_size)
        h, _ = self.rnn(x[:, 0].transpose(0, 1), first)
        return self.last(self.drop(h)[-1])


class BatchAndTime(nn.Module):
    """BatchNorm over examples and time together, which padding cannot be told apart in."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)

    def forward(self, x):
        h = self.norm(self.first(x[:, 0]).flatten(0, 1))
        return self.last(h.view(len(x), -1, 5).mean(1))


def zero_head():
    """Outputs tell nothing of what happens before the last layer."""
    model = Coupled()
    nn.init.zeros_(model.last.weight)
    return model


def untracked():
    """Statistics of the batch in evaluation too."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6, track_running_stats=False),
        nn.Tanh(), nn.Linear(6, CLASSES),
    )  # fmt: skip


def hooked():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
    model[2].register_forward_hook(_tripled)
    return model


def _tripled(module, inputs, output):
    return 3 * output


HARD |= {
    "a head of zeros": zero_head,
    "statistics of the batch": untracked,
    "a hook on BatchNorm": hooked,
    "no number for zeros": Standardised,
    "BatchNorm over time": BatchAndTime,
}
