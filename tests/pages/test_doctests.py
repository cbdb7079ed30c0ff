"""The examples in docstrings say what the code says."""

import doctest
import importlib
import pkgutil

import pytest

import ucfl


def modules():
    """Modules of the package whose docstrings have examples."""
    for found in pkgutil.walk_packages(ucfl.__path__, "ucfl."):
        if found.name.endswith("__main__") or "kernels" in found.name:
            continue
        module = importlib.import_module(found.name)
        if any(test.examples for test in doctest.DocTestFinder().find(module, globs={})):
            yield found.name


NAMES = sorted(modules())


@pytest.mark.parametrize("name", NAMES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(
        importlib.import_module(name),
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
        report=True,
    )
    assert found.failed == 0, name
    assert found.attempted > 0


def test_what_people_call_first_has_an_example():
    with_examples = {
        test.name
        for name in NAMES
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
        if test.examples
    }
    for wanted in (
        "ucfl.runs.starting.run",
        "ucfl.runs.compare.compare",
        "ucfl.users.population.Users.from_arrays",
        "ucfl.users.scenarios.find",
        "ucfl.collaboration.weights.collaboration_weights",
        "ucfl.collaboration.streams.choose_streams",
        "ucfl.collaboration.mixing.Mixing",
    ):
        assert wanted in with_examples, wanted
