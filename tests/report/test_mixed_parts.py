"""What reports say of parts that are mixed differently, and of deadlines."""

import numpy as np
import pytest
import torch

import ucfl
from conftest import make_users
from report.test_page import drawn
from ucfl.collaboration import Collaboration, MixedPart
from ucfl.errors import UcflError
from ucfl.report.answer import method_curve
from ucfl.report.story import tell
from ucfl.runs import Question, curve
from ucfl.wireless import SYSTEMS

SCENARIO = ucfl.Scenario(name="four", rounds=2, model="mlp", batch=8)


def notes(tmp_path, name, **fields):
    users = make_users([20, 8, 16, 24])
    run = ucfl.run(SCENARIO.change(fields), name, users=users, out=tmp_path / "r")
    return run, tell({name: [run]})["notes"]


def test_parts_have_their_place_in_the_report(tmp_path):
    run, said = notes(tmp_path, "fedper")
    share = 195 / run.about["parameters"]
    expected = (
        f"fedper mixes the model by parts: all but head ({1 - share:.1%} of the model) in 1 "
        f"stream; head ({share:.1%} of the model) stays with its user."
    )
    assert expected in said
    found = run.collaboration
    assert [part.streams for part in found.parts] == [1, 0]
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert run.traffic.down == run.traffic.up == pytest.approx(1 - share)


def test_parts_alone_are_no_measured_w(tmp_path):
    run, _ = notes(tmp_path, "fedper")
    with pytest.raises(UcflError, match="no run here has measured W"):
        Question.from_runs(run.folder).plan("wired")


def test_a_deadline_is_told_and_bounds_the_times_on_its_system(tmp_path, look):
    run, said = notes(tmp_path, "fedavg", deadline=7.0, system="slow-uplink", rounds=6)
    late = run.checkpoint.missed.double().sum(1).mean()
    assert any(f"fedavg has {late:.1f} users in a round, on average, that miss" in s for s in said)
    story = tell({"fedavg": [run]})
    (method,) = story["methods"]
    assert 0 < sum(method["deadline"]["late"]) <= 6
    for name, system in SYSTEMS.items():
        there = method_curve(method, story, system)
        assert there.times == pytest.approx(curve(run, name).times), name
    assert np.diff(curve(run, "slow-uplink").times) == pytest.approx(7.0)
    tab = look(story)
    assert drawn(tab)["fedavg"][0] == pytest.approx(curve(run, "slow-uplink").times, abs=1e-6)
    tab.locator("#rho").fill("5")  # another system: as long as those take who are there
    assert np.diff(drawn(tab)["fedavg"][0]).max() > 7.0


def test_no_deadline_is_none(tmp_path):
    run, _ = notes(tmp_path, "fedavg")
    assert tell({"fedavg": [run]})["methods"][0]["deadline"] is None


def test_what_does_not_fit_the_users_is_no_collaboration():
    w, labels = torch.eye(3), torch.arange(3)
    part = MixedPart("head", 0.1, 3, w, labels)
    assert str(part) == "head (10.0% of the model) in 3 streams"
    assert Collaboration(w, labels, torch.zeros(2), parts=(part,)).fits(3)
    assert Collaboration(parts=(part,)).fits(3)
    assert not Collaboration(parts=(part,)).fits(4)
    assert not Collaboration(w, labels[:2], torch.zeros(2)).fits(3)
    assert not Collaboration(w, labels, torch.zeros(4)).fits(3)
    assert not Collaboration(w, labels).fits(3)
