"""The models that users train, and how their first weights are drawn."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn

from ucfl.errors import UcflError, unknown
from ucfl.federation.draws import counter_hash
from ucfl.federation.federation import Federation
from ucfl.federation.layers import CONVOLUTIONS
from ucfl.federation.sequences import character_lstm, character_transformer
from ucfl.imports import load
from ucfl.seeding import seeded
from ucfl.users.given import OWN_MODEL, ModelSource, model_name

Shape = tuple[int, ...]
Factory = Callable[[Shape, int], nn.Module]
Initialisation = Literal["he-glorot", "own"]


def lenet5(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) with ReLU and average pooling, for images from 16x16 up."""
    channels, height, width = _image(shape, 16)
    features = 16 * ((height // 2 - 6) // 2) * ((width // 2 - 6) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def vgg(shape: Shape, classes: int) -> nn.Module:
    """A small VGG (Simonyan & Zisserman, 2015) with batch normalisation, for images from 8x8 up."""
    channels, height, width = _image(shape, 8)
    layers: list[nn.Module] = []
    for out in (32, 64, 128):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        channels = out
    features = 128 * (height // 8) * (width // 8)
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes)
    )


def cnn(shape: Shape, classes: int, hidden: int) -> nn.Module:
    """Two convolutions of 32 and 64 channels with maximum pooling, and a hidden layer.

    With 2,048 units it is LEAF's for FEMNIST (Caldas et al., 2018), without padding, as FedEM's
    authors use it; with 512 that of FedAvg (McMahan et al., 2017), as PFLlib has it.
    """
    channels, height, width = _image(shape, 16)
    features = 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def cnn1d(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions over time and a hidden layer, for series from 16 samples up."""
    if len(shape) != 2 or shape[1] < 16:
        raise UcflError(
            "cnn1d takes series of (channels, samples) from 16 samples up, but the data has shape "
            f"{shape}; choose model mlp or logistic, or bring your own."
        )
    channels, samples = shape
    features = 32 * (((samples - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv1d(channels, 16, 5),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Flatten(),
        nn.Linear(features, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128 and 64 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


MODELS: dict[str, Factory] = {
    "lenet5": lenet5,
    "vgg": vgg,
    "cnn-512": partial(cnn, hidden=512),
    "cnn-2048": partial(cnn, hidden=2048),
    "cnn1d": cnn1d,
    "mlp": mlp,
    "logistic": logistic,
    "character-lstm": character_lstm,
    "character-transformer": character_transformer,
}


def default_initialisation(name: str) -> Initialisation:
    """A person's own model may hold trained weights, so it keeps them."""
    return "he-glorot" if name in MODELS else "own"


def create(
    source: ModelSource,
    shape: Shape,
    classes: int,
    seed: int = 0,
    initialisation: Initialisation | None = None,
) -> nn.Module:
    """A model by name, by ``module:factory``, or from what a person gives as an object.

    That is a module, of which a copy is taken, or what makes one: a function of the input's shape
    and the number of classes, or of nothing; or a class that needs no arguments.

    Same seed, same weights, on every device: they are drawn on the CPU.
    """
    name = model_name(source)
    factory = MODELS.get(name) or _own_factory(source)
    with seeded(seed):
        try:
            model = factory(shape, classes)
        except UcflError:
            raise
        except Exception as error:
            raise UcflError(
                f"the model {name!r} could not be made for inputs of shape {shape} and "
                f"{classes} classes: {error}."
            ) from error
        if not isinstance(model, nn.Module):
            raise UcflError(f"{name!r} returned {type(model).__name__}, not a torch.nn.Module.")
        if (initialisation or default_initialisation(name)) == "he-glorot":
            drawn = initialise(model)
            if initialisation and not drawn:
                raise UcflError(
                    "initialisation 'he-glorot' has no effect: the model has no convolution or "
                    "linear layer to draw; leave it out."
                )
    return model


def initialise(model: nn.Module) -> int:
    """He-uniform convolutions, Glorot-uniform linear layers, zero biases; the rest stays.

    So do frozen layers: what they hold was learnt elsewhere, and nothing would train it again.

    This decides the collaboration round: with PyTorch's own default the gradients at θ⁰ hardly
    show which users are alike, with this they do (docs/decisions/federation.md).
    The number of layers that were drawn.
    """
    drawn = 0
    for layer in model.modules():
        if any(not weights.requires_grad for weights in layer.parameters(recurse=False)):
            continue
        if isinstance(layer, CONVOLUTIONS):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        drawn += 1
    return drawn


def reinitialised(fed: Federation, number: int) -> Tensor:
    """Another first row of Θ for the federation's model, the ``number``-th of its seed.

    For methods with several models, which must not start equal.
    """
    module = fed.module(fed.initial()[0])
    with seeded(int(counter_hash(fed.seed, number))):
        initialise(module)
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    return fed.rows.flatten(tensors).to(fed.device)


def _image(shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        others = "cnn1d, mlp" if len(shape) == 2 else "mlp"
        raise UcflError(
            f"this model takes images of (channels, height, width) from {smallest}x{smallest} up, "
            f"but the data has shape {shape}; choose model {others} or logistic, or bring your own."
        )
    return shape[0], shape[1], shape[2]


def _own_factory(source: ModelSource) -> Factory:
    if isinstance(source, nn.Module):
        return lambda shape, classes: copy.deepcopy(source)
    if not isinstance(source, str):
        return _called(source)
    if source.startswith(OWN_MODEL):
        raise UcflError(f"the model was given by hand ({source}); give it again, as model=.")
    if ":" not in source:
        raise unknown("model", source, MODELS, "Your own goes by 'module:factory'.")
    return _own_factory(load(source, "model"))


def _called(maker: Callable[..., nn.Module]) -> Factory:
    """A function is called with the shape and the classes, unless it takes no arguments.

    A class is called without any where it can be: its arguments are its own.
    """
    without = isinstance(maker, type) and _takes(maker)
    if not without and _takes(maker, (), 0):
        return maker
    return lambda shape, classes: maker()


def _takes(maker: Callable[..., nn.Module], *arguments: object) -> bool:
    try:
        inspect.signature(maker).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True
