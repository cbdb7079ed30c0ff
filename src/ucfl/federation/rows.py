"""A model is a row of Θ: where each of its parameters and buffers lies."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ucfl.errors import UcflError
from ucfl.federation.layers import NORMALISATIONS
from ucfl.parts import Part


class Rows:
    """The translation between a module and a row of Θ.

    A row holds the trainable parameters first (``trainable`` of them: the coordinates that have
    gradients), then frozen parameters, then buffers. Buffers are part of the model and are mixed
    like the rest, so BatchNorm's statistics are averaged with W; whole-number buffers are kept as
    floats and rounded when they are used, complex numbers as real and imaginary parts. ``initial``
    is the row of the module as it was given, and ``dtype`` its precision. In columns of Θ,
    ``trained`` are those that have gradients, ``moving`` those that a forward pass may change, and
    ``fixed`` those that nothing changes (see :meth:`only`).
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = dict(module.named_parameters())
        trainable = {name: p for name, p in parameters.items() if p.requires_grad}
        frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        start = {**trainable, **frozen, **dict(module.named_buffers())}
        self.trainable = sum(map(_numbers, trainable.values()))
        self.dtype = next(iter(trainable.values())).dtype.to_real() if trainable else torch.float32
        self.size = sum(map(_numbers, start.values()))
        self._slots: list[tuple[str, int, int, torch.Size, torch.dtype]] = []
        offset = 0
        for name, tensor in start.items():
            end = offset + _numbers(tensor)
            self._slots.append((name, offset, end, tensor.shape, tensor.dtype))
            offset = end
        self.initial = self.flatten(start)
        self.trained = Part.joined("trained", [(0, self.trainable)], self.size)
        self.moving = (~self.trained).called("moving")
        self.fixed = Part("fixed", (), self.size)
        self._aliases = _aliases(module, start)
        self._normalisations = {
            name for name, layer in module.named_modules() if isinstance(layer, NORMALISATIONS)
        }
        cut = self.trainable
        for name, tensor in self.tensors(self.initial[:cut], self.initial[cut:]).items():
            given = start.get(name, tensor).detach()
            if not (torch.equal(tensor, given) or given.isnan().any()):
                raise UcflError(
                    f"the model's {name} holds values that {self.dtype} cannot: keep it outside "
                    "the parameters and buffers, or give the model another precision."
                )

    def only(self, part: Part) -> Rows:
        """The same model with everything outside of a part fixed: it is not trained, nor updated.

        Its own rows have the columns of ``trained`` first, then those of ``moving`` (frozen
        parameters and buffers of the part), then those of ``fixed``.
        """
        if part.size != self.size:
            raise UcflError(
                f"the part {part.name!r} is one of a model of {part.size} parameters, and this one "
                f"has {self.size}; take it from this federation."
            )
        named = ("trained", self.trained & part), ("moving", self.moving & part), ("fixed", ~part)
        rows = copy.copy(self)
        rows.trained, rows.moving, rows.fixed = (columns.called(name) for name, columns in named)
        rows.trainable, rows.initial = rows.trained.count, rows.joined(self.initial[None])[0]
        rows._slots, offset = [], 0
        for columns in (rows.trained, rows.moving, rows.fixed):
            for name, start, end, shape, dtype in self._slots:
                shared = sum(max(0, min(end, b) - max(start, a)) for a, b in columns.ranges)
                if 0 < shared < end - start:
                    raise UcflError(
                        f"the part {part.name!r} has some columns of {name} and not all of them; "
                        "take whole parameters, as Federation.part does."
                    )
                if shared or (columns is rows.fixed and start == end):
                    rows._slots.append((name, offset, offset + shared, shape, dtype))
                    offset += shared
        return rows

    def joined(self, theta: Tensor) -> Tensor:
        """Rows of Θ in the order of these columns."""
        return torch.cat([part.of(theta) for part in (self.trained, self.moving, self.fixed)], 1)

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of every parameter and buffer, in the order in which a row holds them."""
        return {name: list(shape) for name, _, _, shape, _ in self._slots}

    @property
    def slots(self) -> list[Part]:
        """The columns of every parameter and buffer, in the same order."""
        return [Part(name, ((start, end),), self.size) for name, start, end, *_ in self._slots]

    @property
    def head(self) -> str:
        """The name of the last layer that has trained parameters."""
        return [layer_of(name) for name, _, end, *_ in self._slots if end <= self.trainable][-1]

    def outputs_renamed(self, theta: Tensor, names: Tensor) -> Tensor:
        """Rows of Θ whose output names[i, c] is what output c was; ``names`` [m, outputs].

        Those of the last layer's tensors with a row for each output; a model whose last layer has
        none stays as it is.
        """
        fresh = theta.clone()
        for name, start, end, shape, _ in self._slots:
            if layer_of(name) == self.head and shape[:1] == names.shape[1:]:
                own = theta[:, start:end].reshape(*names.shape, -1)
                place = names[..., None].expand_as(own)
                fresh[:, start:end] = torch.empty_like(own).scatter(1, place, own).flatten(1)
        return fresh

    def output_bias(self, outputs: int) -> Part | None:
        """The columns of the last layer's bias, where it has one for each output."""
        for name, start, end, *_ in self._slots:
            if name == (f"{self.head}.bias" if self.head else "bias") and end - start == outputs:
                return Part("output bias", ((start, end),), self.size)
        return None

    @property
    def has_normalisation(self) -> bool:
        """Whether the model has a part ``normalisation``."""
        return any(layer_of(name) in self._normalisations for name, *_ in self._slots)

    @property
    def bytes(self) -> int:
        """What one model takes in memory and on air."""
        return self.initial.nbytes

    def flatten(self, tensors: dict[str, Tensor]) -> Tensor:
        """A row from a module's tensors by name."""
        parts = [tensors[name] for name, *_ in self._slots]
        return self._joined(parts) if parts else torch.zeros(0, dtype=self.dtype)

    def tensors(self, weights: Tensor, rest: Tensor) -> dict[str, Tensor]:
        """A row's tensors by name: views of ``weights``, copies of ``rest``.

        Layers update buffers in place (BatchNorm does), hence the copies.
        """
        tensors = {}
        # One split, and not a slice for each: its gradient is one concatenation.
        trained = [slot for slot in self._slots if slot[2] <= self.trainable]
        lengths = [end - start for _, start, end, *_ in trained]
        for (name, _, _, shape, dtype), part in zip(trained, weights.split(lengths), strict=True):
            tensors[name] = _shaped(part, shape, dtype)
        for name, start, end, shape, dtype in self._slots[len(trained) :]:
            flat = rest[start - self.trainable : end - self.trainable]
            whole = not (dtype.is_floating_point or dtype.is_complex)
            tensors[name] = _shaped(flat.round() if whole else flat.clone(), shape, dtype)
        return tensors | {alias: tensors[name] for alias, name in self._aliases.items()}

    def rest(self, tensors: dict[str, Tensor]) -> Tensor:
        """The untrained part of a row from its tensors, after a forward pass changed them."""
        parts = [tensors[name] for name, start, *_ in self._slots if start >= self.trainable]
        nothing = next(iter(tensors.values())).new_zeros(0, dtype=self.dtype)
        return self._joined(parts) if parts else nothing

    def _joined(self, tensors: list[Tensor]) -> Tensor:
        flat = [torch.view_as_real(t) if t.is_complex() else t for t in map(Tensor.detach, tensors)]
        return torch.cat([tensor.reshape(-1).to(self.dtype) for tensor in flat])

    def part(self, name: str) -> Part:
        """The columns of a part of the model, or of several as ``name+name``.

        ``head`` is the last layer that has trained parameters, ``body`` everything else,
        ``normalisation`` the parameters and buffers of normalisation layers; any other name is that
        of a layer, or of what layers lie in (``features`` for ``features.0``). A dot at the end
        (``head.``) names a layer that is called by one of those words. A tensor that several layers
        share belongs to the first of them.
        """
        ranges = [each for word in name.split("+") for each in self._ranges(word)]
        return Part.joined(name, ranges, self.size)

    def _ranges(self, word: str) -> list[tuple[int, int]]:
        layers = [layer_of(name) for name, *_ in self._slots]
        trained = [layer_of(name) for name, _, end, *_ in self._slots if end <= self.trainable]
        words = {
            "head": {*trained[-1:]},
            "body": {*layers} - {*trained[-1:]},
            "normalisation": {*layers} & self._normalisations,
        }
        inside = f"{word.removesuffix('.')}."
        chosen = words.get(word, {layer for layer in layers if f"{layer}.".startswith(inside)})
        if not chosen:
            there = ", ".join(word for word, found in words.items() if found)
            names = [layer for layer in dict.fromkeys(layers) if layer]
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            layered = f", and the layers {', '.join(names[:20])}{more}" if names else ""
            raise UcflError(f"the model has no part {word!r}; it has {there}{layered}.")
        places = zip(layers, self._slots, strict=True)
        return [(start, end) for layer, (_, start, end, *_) in places if layer in chosen]

    def module(self, row: Tensor, template: nn.Module) -> nn.Module:
        """A module of its own with the row's parameters and buffers, for deployment."""
        if row.shape != (self.size,) or row.dtype != self.dtype:
            raise UcflError(
                f"a row of {row.numel():,} numbers in {row.dtype} is none of this model, which has "
                f"{self.size:,} in {self.dtype}; give the model that was trained (a method whose "
                "models are mixtures of several makes them itself)."
            )
        module = copy.deepcopy(template)
        tensors = self.tensors(row[: self.trainable].clone(), row[self.trainable :])
        with torch.no_grad():
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                tensor.copy_(tensors[name])
        return module


def layer_of(name: str) -> str:
    """The layer that a parameter or buffer belongs to, whatever it is parametrised by."""
    layer, parametrised, _ = name.partition(".parametrizations.")
    return layer if parametrised else name.rpartition(".")[0]


def _aliases(module: nn.Module, names: dict[str, Tensor]) -> dict[str, str]:
    """Further names of tensors that several layers share, each with the name that a row knows.

    A layer that is used twice has one name only. (``functional_call`` could tie tensors by itself,
    but leaves a module changed in which a layer has two names and its tensor is tied as well.)
    """
    known = {id(tensor): name for name, tensor in names.items()}
    found = {}
    for prefix, layer in module.named_modules():
        own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        for name, tensor in own:
            full = f"{prefix}.{name}" if prefix else name
            if full not in names:
                found[full] = known[id(tensor)]
    return found


def _numbers(tensor: Tensor) -> int:
    """How many real numbers a tensor holds."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _shaped(flat: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if dtype.is_complex:
        flat = torch.complex(*flat.view(*shape, 2).unbind(-1))
    return flat.view(shape).to(dtype)
