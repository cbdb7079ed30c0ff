"""Runs with compressed links: resumed, shared out to processes, timed, and told in words."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import ucfl
from commands import run_ucfl
from conftest import make_users
from runs.test_processes import in_two_processes
from runs.test_runs import QUICK, quick, write_users
from ucfl.errors import UcflError
from ucfl.federation import Links, Wire
from ucfl.report import gather, tell
from ucfl.runs import Question, Run, Stopped, curve
from ucfl.wireless import Audience
from ucfl.wireless import find as find_system

pytestmark = pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")
LOSSY = ["quantise:bits=4", "top-k:share=0.05", "sketch:share=0.1"]


def compressed(how, **more):
    return QUICK.change({"model": "mlp", "uplink": how, "downlink": how, **more})


@pytest.mark.parametrize("name", ["user-centric:streams=2", "scaffold", "fedper"])
@pytest.mark.parametrize("how", LOSSY)
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(how, name, tmp_path):
    """To the bit: what error feedback owes is stored with the state."""
    scenario = compressed(how, participation="2 users")
    whole = quick(tmp_path / "whole", name, scenario)

    def interrupt(progress):
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        quick(tmp_path / "stopped", name, scenario, on_round=interrupt)
    resumed = quick(tmp_path / "stopped", name, scenario, resume=True)
    pd.testing.assert_frame_equal(resumed.history, whole.history, check_exact=True)
    states = [run.checkpoint.state for run in (resumed, whole)]
    assert states[0].keys() == states[1].keys()
    assert ("uplink/0" in states[0]) == (how != "quantise:bits=4")
    for key, value in states[1].items():
        assert torch.equal(states[0][key], value) if torch.is_tensor(value) else True


def test_another_compression_is_another_run(tmp_path):
    quick(tmp_path / "r", scenario=compressed("quantise:bits=4"))
    with pytest.raises(UcflError, match=r"another configuration \(different uplink, downlink\)"):
        quick(tmp_path / "r", scenario=QUICK.change({"model": "mlp"}), resume=True)
    about = Run.open(tmp_path / "r").about
    assert about["configuration"]["scenario"]["uplink"] == "quantise:bits=4"
    assert about["scenario"]["downlink"] == "quantise:bits=4"


def test_none_is_no_other_run_than_before(tmp_path):
    """Neither in its name nor in its state."""
    run = quick(tmp_path / "r", "user-centric:streams=2")
    assert not {"uplink", "downlink"} & set(run.about["configuration"]["scenario"])
    assert not [key for key in run.checkpoint.state if "link" in key]


def test_the_round_in_which_somebody_diverges_takes_nothing_of_what_others_owe(tmp_path):
    """It is run again without that user, from the state before it."""
    users = make_users([20, 8, 13])
    broken = users.train.inputs.clone()
    broken[0] *= 1e300
    train = type(users.train)(broken, users.train.targets, users.train.sizes)
    users = type(users)(**{**vars(users), "train": train})
    run = quick(tmp_path / "r", scenario=compressed("top-k:share=0.1"), users=users)
    assert list(run.dropped) == [0]
    owed = run.checkpoint.state["uplink/0"]
    assert owed.isfinite().all()
    assert not owed[0].any()
    assert np.isfinite(run.record.band).all()  # the others' band goes on
    assert owed[[1, 2]].any(1).all()


def test_two_processes_give_the_results_of_one(tmp_path):
    """A number that is just at a level may be rounded the other way: a step of 8 bits is small."""
    data = tmp_path / "data"
    write_users(data)
    options = ["compare", data, "--model", "mlp", "--rounds", 3, "--json", "--algorithms"]
    options += ["fedavg,user-centric:streams=2,ifca:clusters=2", "--set", "uplink=top-k:share=0.2"]
    options += ["--set", "downlink=quantise:bits=8"]
    two = in_two_processes(*options, "--out", tmp_path / "two")
    assert two.returncode == 0, two.stderr
    one = run_ucfl(*options, "--out", tmp_path / "one", check=True)
    rows = [json.loads(done.stdout)["algorithms"] for done in (one, two)]
    for folder in sorted((tmp_path / "one").iterdir()):
        alone, shared = (Run.open(tmp_path / kind / folder.name) for kind in ("one", "two"))
        assert shared.about["processes"] == 2
        rest = load_file(tmp_path / "two" / folder.name / "checkpoint-1of2.safetensors")
        owed = torch.cat([shared.checkpoint.state["uplink/0"], rest["state/uplink/0"]])
        assert torch.allclose(owed, alone.checkpoint.state["uplink/0"], atol=1e-3)
        assert owed.any(1).all()
        if "theta" in alone.checkpoint.state:
            theta = torch.cat([shared.checkpoint.state["theta"], rest["state/theta"]])
            assert torch.allclose(theta, alone.checkpoint.state["theta"], atol=1e-3)
        assert shared.traffic == alone.traffic
        assert (
            rows[0][alone.algorithm.label]["traffic"] == rows[1][alone.algorithm.label]["traffic"]
        )


def test_a_round_lasts_as_long_as_its_bytes_take(tmp_path):
    """In the paper's system by hand; in a cell, with the streams' own listeners."""
    plain = quick(tmp_path / "plain", "user-centric:streams=2", QUICK.change({"model": "mlp"}))
    lossy = quick(tmp_path / "lossy", "user-centric:streams=2", compressed("quantise:bits=8"))
    sizes = [int(np.prod(shape)) for shape in lossy.about["tensors"].values()]
    ratio = (sum(sizes) + 4 * len(sizes)) / (4 * sum(sizes))
    assert lossy.traffic.down == pytest.approx(2 * ratio, rel=1e-12)
    assert lossy.traffic.up == pytest.approx(ratio, rel=1e-12)
    # T = k T_dl + ρ T_dl + T_comp, of which the first two shrink.
    system = find_system("slow-uplink")
    times = np.diff(curve(lossy, system).times)
    computing = system.computing(3)
    assert times == pytest.approx(ratio * (2 + system.rho) + computing, rel=1e-9)
    site = find_system("urban-micro")
    cell = site.serving(3, plain.model_bytes)
    on_air = [cell.downlink(run.traffic.down, 3, run.audience) for run in (plain, lossy)]
    assert on_air[1] == pytest.approx(ratio * on_air[0], rel=1e-9)
    assert lossy.audience.labels.tolist() == plain.audience.labels.tolist()


def test_parts_of_a_compressed_model_are_heard_by_their_own_listeners():
    """Scales make parts a little larger than their share: the cell counts what was sent."""
    labels = np.array([0, 0, 1])
    heard = Audience(((0.9, np.zeros(3, dtype=np.int64)), (0.1, labels)))
    cell = find_system("urban-micro").serving(3, 10_000)
    whole = cell.downlink(1.1, 3, heard)
    assert whole < 1.1 * cell.downlink(1.0, 3)
    assert cell.downlink(0.25 * 1.1 * 1.001, 3, heard.scaled(0.25)) == pytest.approx(
        0.25 * 1.001 * whole, rel=1e-12
    )


def test_what_comes_before_the_first_round_is_for_everyone():
    """Four streams of a quarter are no broadcast of one model."""
    cell = find_system("urban-micro").serving(4, 10_000)
    heard = Audience.of(np.arange(4)).scaled(0.25)
    start, rounds = ucfl.wireless.Traffic(1, 0, 0), np.zeros((1, 3))
    ends = cell.elapsed(start, rounds, 4, heard)
    assert ends[0] == pytest.approx(cell.downlink(1.0, 4), rel=1e-12)
    assert cell.downlink(1.0, 4, heard) < ends[0]


def test_a_deadline_is_met_by_more_users_when_messages_are_smaller(tmp_path):
    late = []
    for how in ("none", "quantise:bits=4"):
        scenario = QUICK.change({"deadline": 7.0, "system": "slow-uplink"})
        scenario = scenario.change({"uplink": how} if how != "none" else {})
        late.append(int(quick(tmp_path / how, scenario=scenario).checkpoint.missed.sum()))
    assert late[1] < late[0]


def test_absent_users_and_compressed_broadcasts_are_told(tmp_path):
    notes = []
    scenario = compressed("quantise", participation="2 users")
    quick(tmp_path / "a", scenario=scenario, on_note=notes.append)
    assert sum("absent users are taken to hear every broadcast" in note for note in notes) == 1
    notes.clear()
    quick(tmp_path / "b", scenario=compressed("quantise"), on_note=notes.append)
    quick(tmp_path / "c", scenario=scenario.change({"downlink": "none"}), on_note=notes.append)
    assert not [note for note in notes if "absent" in note]


def test_the_page_says_it_in_words_and_runs_of_two_kinds_have_no_page(tmp_path):
    lossy = quick(tmp_path / "lossy" / "r", scenario=compressed("top-k:share=0.05"))
    words = Links.of("top-k:share=0.05", "top-k:share=0.05").words
    assert words == (
        "What is sent is on the uplink reduced to its largest 5%, with error feedback and on the "
        "downlink reduced to its largest 5%, with error feedback."
    )
    assert [note for note in tell(gather([lossy.folder]))["notes"] if note.startswith(words)]
    quick(tmp_path / "plain" / "r", "local", QUICK.change({"model": "mlp"}))
    with pytest.raises(UcflError, match="scenarios differ in downlink, uplink"):
        gather([tmp_path / "lossy", tmp_path / "plain"])


def test_a_plan_tells_runs_by_their_bits(tmp_path):
    """The same method with other messages is another choice, at another price."""
    name, whole = "user-centric:streams=2", QUICK.change({"model": "mlp"})
    for each, scenario in {"a": whole, "b": compressed("quantise:bits=4")}.items():
        quick(tmp_path / each, name, scenario)
    question = Question.from_runs(tmp_path)
    spent = question.spendings("slow-uplink")[0]
    assert list(spent) == [name, f"{name}, quantise:bits=4 up, quantise:bits=4 down"]
    dear, cheap = spent.values()
    assert cheap.down < dear.down / 7
    assert cheap.time[-1] < dear.time[-1]
    assert len(question.times("slow-uplink", 1.0)["algorithms"]) == 2
    quick(tmp_path / "c", "fedavg", whole.change({"lr": 0.5}))
    with pytest.raises(UcflError, match="scenarios differ in lr"):
        Question.from_runs(tmp_path)


def test_the_command_line_reports_bytes_and_refuses_in_a_sentence(tmp_path):
    write_users(tmp_path / "data")
    options = ["run", tmp_path / "data", "--model", "mlp", "--rounds", 2, "--json", "--set"]
    done = run_ucfl(*options, "uplink=quantise:bits=8", "--out", tmp_path / "r", check=True)
    said, run = json.loads(done.stdout), Run.open(tmp_path / "r")
    sizes = [int(np.prod(shape)) for shape in run.about["tensors"].values()]
    assert said["uplink"] == "quantise:bits=8"
    assert said["traffic"]["up_bytes"] == 6 * (sum(sizes) + 4 * len(sizes))
    assert said["traffic"]["down_bytes"] == run.model_bytes == 4 * sum(sizes)
    for wrong, sentence in (
        ("uplink=quantize", "quantise"),
        ("downlink=quantise:bits=40", "bits=40"),
        ("uplink=top-k:share=5", "share=5"),
    ):
        done = run_ucfl(*options, wrong, "--out", tmp_path / "x")
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_what_a_round_declares_must_have_been_exchanged():
    """What a method declares is looked at after its round, so that nothing is left out."""
    wire = Wire.of(Links.of("quantise", "none"), 0, 1, {})
    with pytest.raises(UcflError, match="mine sends 1 models on the uplink in a round, of which 0"):
        wire.check("mine", 1.0, 1.0, 10)
    wire.check("mine", 1.0, 0.0, 10)
