"""An algorithm in a person's own file is found, checked, and told apart from ours."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from ucfl.algorithms import REGISTRY, Algorithm, Traffic, find, revived
from ucfl.algorithms.algorithm import check_state
from ucfl.algorithms.fedprox import FedProx
from ucfl.errors import UcflError
from ucfl.options import Positive


class Parts:
    """What the classes below share."""

    tested_model: ClassVar[str] = "local"

    def start(self, fed):
        return {"theta": fed.initial()}

    def round(self, fed, state, t):
        return {"theta": fed.train(state["theta"], t)}

    def traffic(self, fed, state):
        return Traffic(0, 0)


@dataclass(frozen=True)
class Mine(Parts, Algorithm):
    strength: Positive = 1.0
    layers: tuple[int, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Needy(Parts, Algorithm):
    strength: float


class Undecorated(Parts, Algorithm):
    strength: float = 1.0


class Untested(Algorithm):
    start = round = traffic = None


class Unfinished(Algorithm):
    tested_model: ClassVar[str] = "local"

    def start(self, fed):
        return {}


class Taken(Parts, Algorithm):
    name: ClassVar[str] = "fedavg"


class Spaced(Parts, Algorithm):
    name: ClassVar[str] = "my method"


class Short(Parts, Algorithm):
    def start_traffic(self, fed):
        return Traffic(0, 0)


class Long(Parts, Algorithm):
    def round(self, fed, state, t, extra):
        return state


class MyProx(FedProx):
    """A change of one of ours, with no name given."""


HERE = __name__


def test_by_name_by_place_as_class_and_as_object():
    assert find(f"{HERE}:Mine") == find(Mine) == find(Mine()) == Mine()
    assert find(f"{HERE}:Mine:strength=2") == Mine(strength=2.0)
    assert find(f"{HERE}:MyProx:mu=0.5").label == "MyProx:mu=0.5"
    for kind in REGISTRY.values():
        assert find(f"{kind.__module__}:{kind.__name__}") == find(kind.name)
        assert find(type("Own", (kind,), {})).name == "Own"


def test_hyper_parameters_are_on_the_label_only_where_they_differ():
    assert Mine().label == "Mine"
    assert Mine(strength=2, layers=(1, 2)).label == "Mine:strength=2.0:layers=(1, 2)"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("nowhere:Mine", "no module 'nowhere'"),
        (f"{HERE}:Absent", "has no 'Absent'"),
        (f"{HERE}:Parts", "Parts is no algorithm"),
        (f"{HERE}:HERE", "is no algorithm"),
        (f"{HERE}:Mine:strenght=2", "did you mean 'strength'"),
        (f"{HERE}:Mine:strength=-2", "greater than 0"),
        (f"{HERE}:Mine:strength", "write options as option=value"),
        (f"{HERE}:Needy", r"needs a value for 'strength': write .*:Needy:strength=…"),
        (f"{HERE}:Undecorated", r"'strength', which is no hyper-parameter .*@dataclass"),
        (f"{HERE}:Untested", "does not say which model users deploy"),
        (f"{HERE}:Unfinished", r"has no round\(\)"),
        (
            f"{HERE}:Short",
            r":Short: start_traffic\(\) is called with \(self, fed, state\), and takes "
            r"\(self, fed\); write def start_traffic\(self, fed, state\)",
        ),
        (f"{HERE}:Long", r"round\(\) is called with \(self, fed, state, t\)"),
        (f"{HERE}:Taken", "has the name 'fedavg' of an algorithm of ucfl"),
        (f"{HERE}:Spaced", "not 'my method'"),
        (Taken, "has the name 'fedavg'"),
        (Taken(), "has the name 'fedavg'"),
        (dict, "dict is no algorithm"),
        ("ucfl.algorithms:Algorithm", "Algorithm itself is no method"),
        (3, "is no algorithm"),
        ("fedavgg", "did you mean 'fedavg'.* Your own goes by 'module:Class'"),
        ("Mine:strength=2", "unknown algorithm 'Mine'"),
        ("fedavg:mu", "write options as option=value"),
    ],
)
def test_what_is_wrong_is_one_sentence(given, sentence):
    with pytest.raises(UcflError, match=sentence):
        find(given)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("broken_syntax", "class Mine(:\n", r"SyntaxError: .*line 1"),
        ("broken_import", "import no_such_library\n", "no_such_library.*line 1"),
        ("broken_value", "\nx = 1 / 0\n", r"division by zero \(broken_value.py, line 2\)"),
        ("broken_script", "import sys\nsys.exit(3)\n", "ends the program while it is imported"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_sentence(
    tmp_path, monkeypatch, name, text, sentence
):
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UcflError, match=sentence):
        find(f"{name}:Mine")


@pytest.mark.parametrize("name", REGISTRY)
def test_facts_are_enough_to_make_the_algorithm_again(name):
    assert revived(find(name).facts) == find(name)


def test_an_own_algorithm_is_made_again_from_its_facts():
    facts = Mine(strength=3, layers=(1,)).facts
    assert facts.implementation == f"{HERE}:Mine"
    assert facts.hyper_parameters == {"strength": 3.0, "layers": [1]}
    assert revived(facts) == Mine(strength=3, layers=(1,))


def test_a_changed_source_is_another_code(tmp_path, monkeypatch):
    text = (
        "from ucfl.algorithms.fedavg import FedAvg\n"
        "class Base(FedAvg):\n    value = VALUE\n"
        "class Mine(Base):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    codes = set()
    for name, value in (("first_code", "1"), ("second_code", "1"), ("third_code", "2")):
        (tmp_path / f"{name}.py").write_text(text.replace("VALUE", value))
        codes.add(find(f"{name}:Mine").facts.code)
    assert len(codes) == 2
    assert "" not in codes


def test_a_state_that_cannot_be_stored_is_one_sentence():
    check_state("mine", {"a": torch.zeros(2), "b": 1, "c": "x", "d": True, "e": 0.5})
    for state, sentence in (({"a": [1, 2]}, "holds 'a', which is list"), (3, "a mapping")):
        with pytest.raises(UcflError, match=sentence):
            check_state("mine", state)
