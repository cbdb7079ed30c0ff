"""Parts of a model by the names of its layers: what they hold, and what is said of one that is not.

A row has the trainable parameters first, then frozen ones, then buffers, so a part is several
ranges of columns.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import make_users
from ucfl.errors import UcflError
from ucfl.federation import Federation, LocalTraining
from ucfl.federation.rows import Rows
from ucfl.parts import Part


class Net(nn.Module):
    """Named layers, one frozen, three normalised, and names that begin alike."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.conv10 = nn.Conv2d(2, 2, 3)
        self.features = nn.Sequential(nn.Linear(8, 5), nn.LayerNorm(5), nn.Linear(5, 4))
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
        self.features[0].requires_grad_(False)

    def forward(self, x):
        x = self.conv10(self.norm(self.conv1(x)))
        return self.head(self.features(x.flatten(1)))


def names(rows, part):
    """The tensors that a part holds, each of them whole."""
    mask, found = part.mask, []
    for name, start, end, *_ in rows._slots:
        inside = mask[start:end]
        assert inside.all() or not inside.any()
        if inside.any():
            found.append(name)
    return found


def test_parts_hold_what_their_names_say():
    rows = Rows(Net())
    assert names(rows, rows.part("head")) == ["head.2.weight", "head.2.bias"]
    assert names(rows, rows.part("head.")) == [
        "head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias",
    ]  # fmt: skip
    assert names(rows, rows.part("conv1")) == ["conv1.weight", "conv1.bias"]  # and not conv10
    assert names(rows, rows.part("normalisation")) == [
        "norm.weight", "norm.bias", "features.1.weight", "features.1.bias",
        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    ]  # fmt: skip
    assert names(rows, rows.part("features.0")) == ["features.0.weight", "features.0.bias"]
    assert rows.part("features.0").ranges[0][0] >= rows.trainable  # frozen ones lie behind
    assert set(names(rows, rows.part("features"))) == {
        f"features.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")
    }
    both = rows.part("conv1+normalisation")
    assert both.count == rows.part("conv1").count + rows.part("normalisation").count


def test_head_and_body_are_a_partition_and_so_are_the_layers():
    rows = Rows(Net())
    head, body = rows.part("head"), rows.part("body")
    assert head.count + body.count == rows.size
    assert (~head).ranges == body.ranges
    assert not (head & body).ranges
    layers = [rows.part(name) for name in ("conv1", "norm", "conv10", "features", "head.")]
    assert torch.stack([part.mask for part in layers]).sum(0).tolist() == [1] * rows.size
    assert sum(part.share for part in layers) == pytest.approx(1)


def test_the_batch_norm_that_training_adapts_is_a_normalisation():
    fed = Federation(make_users([8, 8]), Net(), training=LocalTraining(batch=8))
    rows = Rows(Net())
    assert fed.part("normalisation").ranges == rows.part("normalisation").ranges


def test_a_parametrised_layer_is_one_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    torch.nn.utils.parametrizations.weight_norm(model[1])
    rows = Rows(model)
    assert rows.part("head").count == rows.size - rows.part("0").count == 3 + 3 + 12


def test_a_model_of_one_layer_is_its_head():
    rows = Rows(nn.Linear(4, 3))
    assert rows.part("head").share == 1
    with pytest.raises(UcflError, match=r"no part 'body'; it has head\.$"):
        rows.part("body")


@pytest.mark.parametrize("name", ["conv2", "conv", "con", "conv1.weight.0", "", "head+conv2", "."])
def test_a_part_that_no_layer_has_lists_what_there_is(name):
    with pytest.raises(UcflError) as told:
        Rows(Net()).part(name)
    assert str(told.value).endswith(
        "it has head, body, normalisation, and the layers conv1, norm, conv10, features.1, "
        "features.2, head.0, head.2, features.0."
    )
    assert "\n" not in str(told.value)


def test_very_many_layers_are_not_all_listed():
    with pytest.raises(UcflError, match=r"layers 0, 1, .* 19 and 5 more"):
        Rows(nn.Sequential(*[nn.Linear(1, 1) for _ in range(25)])).part("x")


ranges = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: (min(pair), max(pair))),
    max_size=4,
)


@given(ranges, ranges)
def test_parts_are_sets_of_columns(one, other):
    a, b = Part.joined("a", one, 20), Part.joined("b", other, 20)
    for part, expected in (
        (~a, ~a.mask),
        (a & b, a.mask & b.mask),
        (a - b, a.mask & ~b.mask),
    ):
        assert torch.equal(part.mask, expected)
        assert part.count == int(expected.sum())
        edges = [place for each in part.ranges for place in each]
        assert edges == sorted(set(edges))  # in order, and they do not touch
    theta = torch.arange(60.0).view(3, 20)
    assert torch.equal(a.of(theta), theta[:, a.mask])
