"""Models of sequences of tokens: for every position, what comes next."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ucfl.errors import UcflError

Shape = tuple[int, ...]


class CharacterLSTM(nn.Module):
    """An embedding of 16 numbers, an LSTM of 64 units, and a linear layer."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 16)
        self.lstm = nn.LSTM(16, 64, batch_first=True)
        self.output = nn.Linear(64, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length] tokens; [n, length, tokens] outputs."""
        states, _ = self.lstm(self.embedding(x))
        outputs: Tensor = self.output(states)
        return outputs


class Block(nn.Module):
    """A transformer's block: attention to what came before, then a layer for each position.

    Normalised before each of the two (Xiong et al., ICML 2020).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.hidden = nn.Linear(width, 4 * width)
        self.back = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, width] both."""
        n, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(n, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 3, 0, 1, 4).unbind(0)  # [heads, n, length, width]
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        shares = scores.masked_fill(later, -torch.inf).softmax(-1)
        found = (shares @ value).permute(1, 2, 0, 3).reshape(n, length, width)
        x = x + self.mixed(found)
        hidden = nn.functional.gelu(self.hidden(self.before_hidden(x)))
        after: Tensor = x + self.back(hidden)
        return after


class CharacterTransformer(nn.Module):
    """Two blocks of width 32 with two heads; tokens and their places are embedded."""

    def __init__(self, tokens: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.normalised = nn.LayerNorm(width)
        self.output = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length] tokens; [n, length, tokens] outputs."""
        outputs: Tensor = self.output(self.normalised(self.blocks(self.embedding(x) + self.places)))
        return outputs


def character_lstm(shape: Shape, classes: int) -> nn.Module:
    """A small LSTM for sequences of tokens."""
    _length(shape)
    return CharacterLSTM(classes)


def character_transformer(shape: Shape, classes: int) -> nn.Module:
    """A small transformer for sequences of tokens (Vaswani et al., 2017)."""
    return CharacterTransformer(classes, _length(shape))


def _length(shape: Shape) -> int:
    if len(shape) != 1:
        raise UcflError(
            f"this model takes sequences of tokens, but the data has shape {shape}; choose model "
            "lenet5 for images or mlp for anything, or bring your own."
        )
    return shape[0]
