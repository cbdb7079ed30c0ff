"""``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` as loops over time in plain operations.

PyTorch's own are single operations for one user's sequences. Written out, those of all users go
through at once, with the layer's own parameters under their own names.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
Hidden = tuple[Tensor, ...]


class Unrolled(nn.Module):
    """A recurrent layer, step by step in time; takes what it takes, but for packed sequences."""

    def __init__(self, layer: nn.RNN | nn.LSTM | nn.GRU) -> None:
        super().__init__()
        # What a model may ask of its layer.
        self.mode, self.bias, self.batch_first = layer.mode, layer.bias, layer.batch_first
        self.input_size, self.hidden_size = layer.input_size, layer.hidden_size
        self.num_layers, self.bidirectional = layer.num_layers, layer.bidirectional
        self.proj_size, self.dropout = layer.proj_size, layer.dropout
        self._ways = 2 if layer.bidirectional else 1
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self.train(layer.training)

    def flatten_parameters(self) -> None:
        """Nothing: that is for PyTorch's own implementation."""

    def forward(
        self, x: Tensor, hidden: Tensor | tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor | tuple[Tensor, Tensor]]:
        """Outputs [batch, time, features] (by ``batch_first``; or unbatched), and last states."""
        if not isinstance(x, Tensor):
            raise TypeError("packed sequences are not supported; pad them instead")
        batched = x.dim() == 3
        x = x if batched else x[:, None]
        turned = batched and self.batch_first
        x = x.transpose(0, 1) if turned else x  # [time, batch, features]
        first = self._first_states(x, hidden, batched)
        last: list[Hidden] = []
        for level in range(self.num_layers):
            outputs = []
            for way in range(self._ways):
                state: Hidden = tuple(part[level * self._ways + way] for part in first)
                y, state = self._run(x if way == 0 else x.flip(0), state, level, way)
                outputs.append(y if way == 0 else y.flip(0))
                last.append(state)
            x = torch.cat(outputs, -1) if self._ways == 2 else outputs[0]
        ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        if not batched:
            x, ends = x[:, 0], tuple(end[:, 0] for end in ends)
        x = x.transpose(0, 1) if turned else x
        return x, (ends[0], ends[1]) if len(ends) == 2 else ends[0]

    def _first_states(
        self, x: Tensor, hidden: Tensor | tuple[Tensor, Tensor] | None, batched: bool
    ) -> Hidden:
        if hidden is not None:
            given = hidden if isinstance(hidden, tuple) else (hidden,)
            return given if batched else tuple(part[:, None] for part in given)
        count, size = self.num_layers * self._ways, self.proj_size or self.hidden_size
        zero = x.new_zeros(count, x.shape[1], size)
        if self.mode != "LSTM":
            return (zero,)
        return zero, x.new_zeros(count, x.shape[1], self.hidden_size)

    def _run(self, x: Tensor, state: Hidden, level: int, way: int) -> tuple[Tensor, Hidden]:
        """One layer in one direction, over [time, batch, features]."""
        suffix = f"_l{level}" + ("_reverse" if way else "")

        def named(name: str) -> Tensor | None:
            found: Tensor | None = getattr(self, name + suffix, None)
            return found

        from_input, from_hidden = named("weight_ih"), named("weight_hh")
        assert from_input is not None
        assert from_hidden is not None
        gates = nn.functional.linear(x, from_input, named("bias_ih"))  # of all times at once
        outputs = []
        for now in gates.unbind(0):
            before = nn.functional.linear(state[0], from_hidden, named("bias_hh"))
            state = _CELLS[self.mode](now, before, state)
            if (projection := named("weight_hr")) is not None:
                state = nn.functional.linear(state[0], projection), *state[1:]
            outputs.append(state[0])
        return torch.stack(outputs), state


def _gates(together: Tensor, count: int) -> tuple[Tensor, ...]:
    return tuple(together.view(*together.shape[:-1], count, -1).unbind(-2))


def _lstm(now: Tensor, before: Tensor, state: Hidden) -> Hidden:
    i, f, g, o = _gates(now + before, 4)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(now: Tensor, before: Tensor, state: Hidden) -> Hidden:
    (r, z, n), (r_, z_, n_) = _gates(now, 3), _gates(before, 3)
    reset, update = (r + r_).sigmoid(), (z + z_).sigmoid()
    new = (n + reset * n_).tanh()
    return ((1 - update) * new + update * state[0],)


_CELLS: dict[str, Callable[[Tensor, Tensor, Hidden], Hidden]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda now, before, state: ((now + before).tanh(),),
    "RNN_RELU": lambda now, before, state: ((now + before).relu(),),
}
