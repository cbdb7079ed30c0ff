"""PyTorch's private interfaces: used in one file, and each of them works.

A pass or a replacement that no longer matches its model changes no number, only speed, so nothing
else would tell.
"""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import DEVICE, make_federation, make_users
from ucfl.execution import marks, passes, pooling, private, tracing

ROOT = Path(__file__).parent.parent.parent
PRIVATE = re.compile(r"torch\._|torch\.jit|fx\.experimental|\._schema|\._version\b")


def test_no_other_file_uses_private_interfaces():
    source = ROOT / "src" / "ucfl"
    used = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if PRIVATE.search(re.sub(r'""".*?"""', "", file.read_text(), flags=re.DOTALL))
    }
    assert used == {"execution/private.py"}


def test_this_pytorch_is_one_that_was_tested_and_no_newer_one_is_admitted():
    assert torch.__version__.rpartition(".")[0] in private.TESTED
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (required,) = [text for text in project["dependencies"] if text.startswith("torch")]
    least, most = private.TESTED[0], private.TESTED[-1]
    major, minor = most.split(".")
    assert required == f"torch>={least},<{major}.{int(minor) + 1}"


def changes(monkeypatch, model, **options):
    """How many places each pass changes in a training step of a model."""
    found = {}

    def counted(change):
        def run(graph):
            count = change(graph)
            found[change.__name__] = max(found.get(change.__name__, 0), count)
            return count

        return run

    for name in ("FOR_CPU", "FOR_GPU"):
        monkeypatch.setattr(passes, name, [counted(each) for each in getattr(passes, name)])
    users = make_users([8, 8], shape=(1, 8, 8) if model == "vgg" else (1, 16, 16))
    fed = make_federation(users, model, double=False, batch=4, precision="float32", **options)
    fed.train(fed.initial(), 1)
    return found


@pytest.mark.parametrize(
    ("model", "fires"),
    [
        ("mlp", {"fuse_products"}),
        ("lenet5", {"materialise", "share_layouts", "fuse_bias_gradients", "fuse_products"}),
        (
            "vgg",
            {"drop_zero_sums", "materialise", "share_layouts", "fuse_statistics", "fuse_products"},
        ),
    ],
)
def test_every_pass_for_a_gpu_changes_the_model_it_was_written_for(
    model, fires, traced, monkeypatch
):
    pytest.importorskip("triton")
    if DEVICE == "cpu":
        monkeypatch.setattr(marks, "GPU", "cpu")
    found = changes(monkeypatch, model)
    assert {name for name, count in found.items() if count} == fires


def test_the_pass_for_a_cpu_changes_the_model_it_was_written_for(traced, monkeypatch):
    if DEVICE != "cpu":
        pytest.skip("on a GPU other passes run")
    assert changes(monkeypatch, "lenet5")["simplify"] > 10


@pytest.mark.parametrize(
    ("layers", "ours"),
    [
        ([nn.AvgPool2d(2)], {"_average"}),
        ([nn.ReLU(), nn.MaxPool2d(2)], {"_relu", "_largest"}),
    ],
)
def test_pooling_is_taken_over_where_a_model_calls_it(layers, ours, monkeypatch):
    taken = set()

    def counted(function):
        def run(*args, **kwargs):
            out = function(*args, **kwargs)
            taken.update({function.__name__} if out is not None else ())
            return out

        return run

    monkeypatch.setattr(
        pooling, "OURS", {func: counted(function) for func, function in pooling.OURS.items()}
    )
    model = nn.Sequential(*layers)
    tracing.trace(lambda x: (model(x),), [torch.randn(2, 1, 4, 4)])
    assert taken == ours


@pytest.mark.parametrize("model", ["lenet5", "vgg", "mlp", "logistic"])
def test_torchscript_runs_every_graph_of_our_models(model, traced, monkeypatch):
    if DEVICE != "cpu":
        pytest.skip("a GPU's graphs are recorded")
    original, faithful = tracing.without_gil, []

    def without_gil(graph):
        run = original(graph)
        faithful.append(run is not graph)
        return run

    monkeypatch.setattr(tracing, "without_gil", without_gil)
    fed = make_federation(make_users([8, 8], shape=(1, 16, 16)), model)
    fed.metric(fed.train(fed.initial(), 1))
    fed.collaboration_round(fed.initial())
    orders, step, evaluation, collaboration = faithful
    assert orders
    assert step
    assert evaluation
    # BatchNorm's buffers are written there and not read: TorchScript would leave that out.
    assert collaboration == (model != "vgg")


def test_the_compiler_knows_the_options_that_it_is_given():
    torch.compile(nn.Linear(2, 2), options=dict(private.FUSION))
    with pytest.raises(RuntimeError, match="realize_nothing"):
        torch.compile(nn.Linear(2, 2), options={"realize_nothing": 1})


def test_a_tensors_version_counts_writes():
    x = torch.zeros(2)
    before = private.version(x)
    x.add_(1)
    assert private.version(x) > before
