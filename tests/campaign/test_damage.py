"""A bit flipped, the end cut off: what is stored is read as it was, or refused in one sentence."""

import random
import re
import warnings

import pytest
import torch

from campaign.mutations import flipped_or_cut
from campaign.readers import cell
from runs.test_runs import quick
from ucfl.errors import UcflError, UcflWarning
from ucfl.paper import Store
from ucfl.runs import Run, Stopped
from ucfl.runs.checkpoint import Checkpoint, before
from ucfl.runs.folder import CHECKPOINT, CONFIGURATION, HISTORY, read_configuration

STORED = (CHECKPOINT, HISTORY, CONFIGURATION, "cell")


def contents(file):
    """What a stored file says, in a form that can be compared."""
    if file.name == CHECKPOINT:
        point = Checkpoint.load(file, torch.device("cpu"))
        tensors = {**point.history, "traffic": point.traffic}
        tensors |= {k: v for k, v in point.state.items() if isinstance(v, torch.Tensor)}
        values = {k: v for k, v in point.state.items() if k not in tensors}
        listed = {k: v.tolist() for k, v in tensors.items()}
        return point.round, point.seconds, point.dropped, values, listed
    if file.name == HISTORY:
        return Run.open(file.parent).history.to_dict("list")
    if file.name == CONFIGURATION:
        return read_configuration(file.parent)
    (found,) = Store(file.parent.parent).every()
    arrays = {k: v.tolist() for k, v in vars(found).items() if hasattr(v, "tolist")}
    arrays |= {k: v.tolist() for k, v in found.curves.items()}
    arrays |= {k: v.tolist() for k, v in vars(found.collaboration).items() if hasattr(v, "tolist")}
    heard = found.audience.labels.tolist()
    plain = (found.scenario, found.algorithm, found.seed, found.best_round, found.start)
    more = (found.seconds, found.model_bytes, found.population, found.origin)
    return *plain, *more, arrays, heard


def check(folder, name, times, seed):
    """No damaged form of a file is read as something else; any other error is raised."""
    file = cell(folder) if name == "cell" else quick(folder / "r").folder / name
    rng, whole, expected = random.Random(f"{name} {seed}"), file.read_bytes(), repr(contents(file))
    refused = []
    for _ in range(times):
        file.write_bytes(flipped_or_cut(whole, rng))
        try:
            assert repr(contents(file)) == expected
        except UcflError as error:
            refused.append(str(error))
    assert len(refused) > times / 2  # in Parquet, many bits say nothing
    sentence = re.compile(r"[^\n]*(is damaged|cannot be read|cannot read) \([^\n]*\.")
    assert [said for said in refused if not sentence.fullmatch(said)] == []


@pytest.mark.parametrize("name", STORED)
def test_damage_is_never_read_as_something_else(tmp_path, name):
    check(tmp_path, name, 60, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", STORED)
def test_damage_is_never_read_as_something_else_a_thousand_times(tmp_path, name):
    check(tmp_path, name, 1000, 1)


def test_every_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    def interrupt(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        quick(tmp_path / "r", checkpoint_seconds=0, on_round=interrupt)
    file = tmp_path / "r" / CHECKPOINT
    rng, whole, fell_back = random.Random(0), file.read_bytes(), 0
    for _ in range(60):
        file.write_bytes(flipped_or_cut(whole, rng))
        with warnings.catch_warnings(record=True, category=UcflWarning) as said:
            warnings.simplefilter("always")
            point = Checkpoint.load(file, torch.device("cpu"))
        assert point.round == (2 if said else 3)
        assert all("of round 2, is taken instead" in str(warning.message) for warning in said)
        fell_back += len(said)
    assert fell_back > 50
    before(file).write_bytes(flipped_or_cut(before(file).read_bytes(), rng))
    file.write_bytes(flipped_or_cut(whole, rng))
    with pytest.raises(UcflError, match="is damaged"):
        Checkpoint.load(file, torch.device("cpu"))
