"""The command line as a person meets it: real processes, exit codes, what is printed where."""

import json
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from commands import run_ucfl, ucfl_command
from runs.test_runs import write_users
from ucfl import cli
from ucfl.cli import app
from ucfl.cli.common import seeds_from
from ucfl.errors import UcflError
from ucfl.runs.files import NotWritten
from ucfl.users import SCENARIOS, find
from ucfl.users.scenarios import to_toml


@pytest.fixture
def data(tmp_path):
    write_users(tmp_path / "data")
    return tmp_path / "data"


def ucfl(*arguments, cwd, **environment):
    return run_ucfl(*arguments, cwd=cwd, **{"UCFL_DATA": str(cwd / "no-data"), **environment})


def test_run_prints_a_table_and_says_where_it_is(data, tmp_path):
    done = ucfl("run", data, "--model", "mlp", "--rounds", 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout
    assert "The run is in runs/data-fedavg-3rounds-seed0-" in done.stdout
    assert "round 3/3" in done.stderr  # plain lines, since nobody watches
    assert "\x1b" not in done.stdout + done.stderr


def test_text_in_brackets_is_printed_as_it_is(data, tmp_path):
    place = "[old] runs/a[/b]:key:"
    done = ucfl("run", data, "--model", "mlp", "--rounds", "1", "--out", place, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"The run is in {place}" in done.stdout


def test_compare_prints_one_object_and_nothing_else(data, tmp_path):
    done = ucfl(
        "compare", data, "--model", "mlp", "--rounds", 2, "--algorithms", "fedavg,local",
        "--seeds", "0-1", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {
        *("scenario", "rounds", "seeds", "metric", "uplink", "downlink", "algorithms"),
    }
    assert result["seeds"] == [0, 1]
    for row in result["algorithms"].values():
        for part in ("mean", "worst"):
            assert 0 <= row[part]["final"] <= 100
            assert 0 <= row[part]["best"] <= 100
        assert {"std", "tested_model", "traffic", "seconds"} <= set(row)


def test_plan_prints_a_table_and_a_recommendation(data, tmp_path):
    done = ucfl("plan", data, "--model", "mlp", "--system", "wired", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "recommended" in done.stdout
    assert "Take " in done.stdout
    done = ucfl("plan", data, "--model", "mlp", "--system", "urban-macro", "--json", cwd=tmp_path)
    plan = json.loads(done.stdout)
    assert plan["unit"] == "s"
    assert {"streams", "round_time", "joules", "score"} <= set(plan["streams"][0])


def test_times_and_budgets_need_no_w(data, tmp_path):
    words = ["--model", "mlp", "--rounds", 2, "--algorithms", "fedavg,local", "--out", "r"]
    assert ucfl("compare", data, *words, cwd=tmp_path).returncode == 0
    done = ucfl("plan", "r", "--system", "urban-micro", "--within", "60h", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Within 60h, take " in done.stdout
    assert "(1 seed). It shares too few seeds with local (" in done.stdout
    done = ucfl("plan", "r", "--target", "30", "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert set(answer["times"]["algorithms"]) == {"fedavg", "local"}
    assert answer["unit"] == "T_dl"
    assert "recommended" not in answer
    for more in ([], ["--within", "60", "--max-streams", 2]):
        done = ucfl("plan", "r", *more, cwd=tmp_path)
        assert done.returncode == 2
        assert "write collaboration(state) in an algorithm of your own" in done.stderr


def test_systems_explains_one_with_its_options(tmp_path):
    done = ucfl("systems", "urban-micro:bandwidth=10MHz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("bandwidth", "10 MHz", "1 kHz to 10 GHz", "interference_db"):
        assert words in done.stdout
    found = json.loads(ucfl("systems", "wired", "--json", cwd=tmp_path).stdout)
    assert found == {"wired": {"rho": 1.0, "t_min": 1.0, "mean_delay": 0.0}}


@pytest.mark.parametrize("command", ["scenarios", "algorithms", "data", "systems"])
def test_lists(command, tmp_path, monkeypatch):
    monkeypatch.setenv("UCFL_DATA", str(tmp_path / "no-data"))
    listed = CliRunner().invoke(app, [command])
    assert listed.exit_code == 0
    assert listed.output
    assert json.loads(CliRunner().invoke(app, [command, "--json"]).stdout)


def test_every_scenario_prints_as_a_toml_file_that_gives_it_back(tmp_path):
    for name, scenario in SCENARIOS.items():
        file = tmp_path / f"{name}.toml"
        file.write_text(to_toml(scenario))
        assert find(str(file)) == scenario


def bad_folder(tmp_path, name, **arrays):
    folder = tmp_path / name
    folder.mkdir()
    good = {"x": np.zeros((10, 4)), "y": np.arange(10) % 2}
    np.savez(folder / "a.npz", **good)
    np.savez(folder / "b.npz", **{**good, **arrays})
    return folder


#: Objectives that cannot be one.
WRONG = """
import torch.nn.functional as F
from ucfl import Objective

def LOSS(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")

SHAPE = Objective(F.cross_entropy)
NOTHING = Objective(LOSS, {"odd": lambda outputs, targets: outputs[:, 0] * float("nan")})
"""

#: An algorithm whose line for the dataclass is not what it must be.
THAWED = """from dataclasses import dataclass
from ucfl.algorithms.fedavg import FedAvg

@dataclass
class Mine(FedAvg):
    share: float = 0.5
"""


def mistakes(tmp_path):
    """What a person may type, and a word of the answer."""
    x = np.zeros((10, 4))
    bad = {
        "nan": {"x": np.full((10, 4), np.nan)},
        "shape": {"x": np.zeros((10, 5))},
        "empty": {"x": x[:0], "y": np.arange(0)},
        "labels": {"y": np.arange(10) - 1},
        "large": {"x": np.full((10, 4), 1e39)},
        "label": {"y": np.full(10, 10**9)},
        "numbers": {"y": np.arange(10) / 2},
    }
    folders = {name: bad_folder(tmp_path, name, **arrays) for name, arrays in bad.items()}
    cut = bad_folder(tmp_path, "cut")
    (cut / "b.npz").write_bytes((cut / "b.npz").read_bytes()[:200])
    (tmp_path / "file").write_text("")
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "thawed.py").write_text(THAWED)
    good = bad_folder(tmp_path, "good")
    np.save(tmp_path / "w.npy", np.full((4, 4), 0.25))
    np.save(tmp_path / "rows.npy", np.full((4, 3), 0.25))
    (tmp_path / "empty-folder").mkdir()
    return [
        (["run", "rotated-mnits"], "did you mean 'rotated-mnist'"),
        (["run", "--algorithm", "fedagv"], "did you mean 'fedavg'"),
        (["compare", "--algorithms", "fedavg,locla"], "did you mean 'local'"),
        (["run", "emnist-label-shift"], "ucfl data fetch emnist"),
        (["run", "cifar10-concept-shift"], "ucfl data fetch cifar10"),
        (["run", folders["nan"]], "NaN"),
        (["run", folders["shape"]], "shape"),
        (["run", folders["empty"]], "b has no training data"),
        (["run", folders["labels"]], "must lie in"),
        (["run", cut], "is damaged"),
        (["run", tmp_path], "unknown scenario|holds no .npz"),
        (["run", good, "--model", "mlp", "--out", tmp_path / "file"], "is a file"),
        (["run", good, "--model", "mlp", "--out", tmp_path / "file" / "x"], "cannot be written"),
        (["run", good, "--model", "mlp", "--algorithm", "oracle"], "true groups"),
        (["run", good, "--model", "lenet5"], "choose model mlp"),
        (["run", good, "--algorithm", "no_such_module:Mine"], "there is no module"),
        (["run", good, "--algorithm", "ucfl.algorithms:Absent"], "has no 'Absent'"),
        (["compare", good, "--algorithms", "ucfl.wireless:Traffic"], "is no algorithm"),
        (["run", "--set", "participation=0"], "a share above 0 and up to 1"),
        (["run", "--set", "participation=1.5"], "a share above 0 and up to 1"),
        (["run", "--set", "newcomers=1"], "newcomers"),
        (["run", "--set", "deadline=8"], "system"),
        (["run", good, "--model", "mlp", "--set", "objective=clasification"], "did you mean"),
        (["run", good, "--model", "mlp", "--set", "objective=wrong:SHAPE"], "one number for each"),
        (["run", good, "--model", "mlp", "--set", "objective=wrong:NOTHING"], "'odd' gives NaN"),
        (["run", good, "--model", "mlp", "--set", "objective=wrong:LOSS"], "not a ucfl.Objective"),
        (["run", good, "--model", "mlp", "--set", "objective=next-token"], "position of a"),
        (["run", folders["numbers"], "--model", "mlp"], "whole numbers (classes), others'"),
        (["run", good, "--model", "mlp", "--algorithm", "fedper:personal=tail"], "tail"),
        (["run", "--set", "lr=fast"], "lr"),
        (["run", "--set", "lr"], "FIELD=VALUE"),
        (["run", "--set", "userz=3"], "did you mean 'users'"),
        (["run", "--rounds", "0"], "--rounds"),
        (["run", "--device", "quantum"], "'quantum'; choose auto (a GPU where there is one), cpu,"),
        (["run", "--device", "cuda:-1"], "unknown device 'cuda:-1'"),
        (["run", "--device", "cuda:99"], "cannot be used here"),
        (["run", "--rounds", "ten"], "--rounds takes a whole number from 1 up, not 'ten'.\n"),
        (["run", "--chunk", "0"], "--chunk takes a whole number from 1 up, not 0.\n"),
        (["run", "--seed", "one"], "--seed takes a whole number, not 'one'.\n"),
        (["run", "--checkpoint-seconds", "soon"], "takes a number from 0 up, not 'soon'.\n"),
        (["run", "--model", "resnet"], "did you mean 'lenet5', or another of character-lstm, "),
        (["compare", "--seeds", "a-b"], "--seeds takes"),
        (["compare", "--seeds", "0-9999999999"], "names more than 10,000"),
        (["compare", "--seeds", "0-99999999999999999999"], "a seed is"),
        (["compare", "--seeds", "4-2"], "the smaller number first"),
        (["run", "--seed", "-1"], "a seed is"),
        (["run", "--set", "lr=inf"], "finite number"),
        (["run", "--set", "alpha=0.01"], "'alpha' has no effect with split 'iid'"),
        (["run", good, "--set", "users=3"], "the 2 users of "),
        (["run", folders["large"]], "b: train data contains numbers that are too large"),
        (["run", folders["label"]], "b: train data has the class 1000000000"),
        (["run", "--set", "lr=0.3", "--algorithm", "scaffold"], "write scaffold:lr=…"),
        (["run", "--set", "momentum=0", "--algorithm", "pfedme"], "write pfedme:momentum=…"),
        (["run", "--set", "variance_batch=9"], "no effect on fedavg; leave it out"),
        (["compare", "--set", "epochs=2", "--algorithms", "scaffold,pfedme"], "no effect"),
        (["run", "--algorithm", "fedprox:mu=nan"], "finite number"),
        (["run", "--algorithm", "pfedme:lr=-1"], "greater than 0"),
        (["run", "--algorithm", "user-centric:variance_batch=-1"], "greater than 0"),
        (["run", "--algorithm", "user-centric:sketch=1000000000"], "longer than the model's"),
        (["compare", "--algorithms", ""], "unknown algorithm"),
        (["run", "--no-such-option"], "--no-such-option"),
        (["fly"], "fly"),
        (["comapre"], "ucfl: No such command 'comapre'; did you mean 'compare'?\n"),
        (["run", "--algorithm", "user-centric:streams=two"], "valid integer, or 'all' or 'auto'."),
        (["run", good, "--algorithm", "thawed:Mine"],
         "loaded: write @dataclass(frozen=True) above the class (thawed.py, line 4)."),
        (["compare", "--algorithms", "fedavg, lokal"], "unknown algorithm 'lokal'"),
        (["data", "fetch", "imagenet"], "unknown data set"),
        (["data", "fetch", "watch"], "ucfl data import watch seglearn"),
        (["run", "mnist-writers"], "ucfl data fetch qmnist"),
        (["run", "mnist-writers", "--set", "users=10"], "'users' has no effect; leave it out"),
        (["run", "mnist-writers", "--set", "points=10"], "'points' has no effect; leave it out"),
        (["run", "rotated-mnist", "--set", "classes_per_user=3"], "set split = 'classes'"),
        (["run", "rotated-mnist", "--set", "permute_labels=conflict"], "or 'conflicting'"),
        (["run", "rotated-mnist", "--set", "split=natural"], "does not say whose its examples"),
        (["data", "import", "emnist", tmp_path / "nowhere"], "does not exist"),
        (["data", "verify", "cifar10"], "ucfl data fetch cifar10"),
        (["plan", "--system", "wierd"], "did you mean 'wired'"),
        (["plan", "--system", "wired:rho=-1"], "above 0"),
        (["plan", "--system", "wired:t_min=-1"], "t_min must be"),
        (["plan", tmp_path / "nowhere.npy"], "cannot be read"),
        (["plan", tmp_path / "w.npy", "--system", "urban-micro"], "--model-bytes"),
        (["plan", tmp_path / "w.npy", "--max-streams", "9"], "9 streams do not fit 4 users"),
        (["plan", tmp_path / "w.npy", "--deadline", "0.5"], "no number of streams meets"),
        (["plan", tmp_path / "w.npy", "--system", "urban-micro:base_dbm=-300",
          "--model-bytes", "9"], "between -10 dBm and 60 dBm"),
        (["plan", "--system", "urban-micro:bandwidth=20"], "write its unit"),
        (["plan", "--system", "urban-micro:bandwidth=-20MHz"], "between 1 kHz and 10 GHz"),
        (["plan", tmp_path / "w.npy", "--model-bytes", "many"], "--model-bytes many: write a"),
        (["plan", tmp_path / "w.npy", "--deadline", "4s"], "counts in broadcasts (T_dl)"),
        (["plan", tmp_path / "w.npy", "--deadline", "-1"], "deadline of a round must be above 0"),
        (["plan", tmp_path / "w.npy", "--leave-out", "10"], "write 10% or 0.1"),
        (["plan", tmp_path / "w.npy", "--target", "0.85"], "percent sign, as 85%"),
        (["plan", tmp_path / "w.npy", "--target", "850%"], "between 0% and 100%, not at 850%.\n"),
        (["plan", tmp_path / "w.npy", "--target", "300"], "between 0 and 100, as 85 or 85%"),
        (["plan", tmp_path / "w.npy", "--within", "30s"], "--within chooses among finished runs"),
        (["plan", tmp_path / "w.npy", "--system", "measured-cell", "--model-bytes", "1kB"],
         "measured-cell:file=FILE.csv"),
        (["systems", "urban-mikro"], "did you mean 'urban-micro'"),
        (["plan", tmp_path / "w.npy", "--set", "users=3"], "--set and --model have no effect"),
        (["plan", "--model-bytes", "9"], "--model-bytes is for a saved W"),
        (["plan", tmp_path / "rows.npy"], "must be a square matrix"),
        (["plan", tmp_path / "empty-folder"], "holds no run"),
        (["plan", "rotated-mnits"], "did you mean 'rotated-mnist'"),
        (["reproduce", "table-1"], "did you mean 'table1'"),
        (["reproduce", "--only", "emnist-label"], "did you mean 'emnist-label-shift'"),
        (["reproduce", "--algorithms", "fedagv"], "did you mean 'fedavg'"),
        (["reproduce", "--algorithms", "fedem"], "none of the cells"),
        (["reproduce", "--seeds", "a-b"], "--seeds takes"),
        (["reproduce", "--rounds", "0"], "--rounds"),
        (["reproduce", "--device", "quantum"], "unknown device 'quantum'"),
        (["reproduce", "--out", tmp_path / "file"], "is a file"),
        (["report"], "Missing argument"),
        (["report", tmp_path / "nowhere"], "nowhere: No such file"),
        (["report", tmp_path / "file"], "file: Not a directory"),
        (["report", tmp_path / "empty-folder"], "holds no run"),
        (["report", tmp_path / "empty-folder", "--text"], "holds no run"),
        (["figure", "maen", tmp_path / "empty-folder"], "did you mean 'mean'"),
        (["figure", "mean"], "Missing argument"),
        (["figure", "mean", tmp_path / "empty-folder"], "holds no run"),
        (["figure", "mean", tmp_path / "empty-folder", "--out", "f.gif"], ".pdf, .svg, .png"),
        (["watch", tmp_path / "nowhere"], "nowhere: No such file"),
        (["watch", tmp_path / "empty-folder"], "holds no run"),
        (["export", "tensorbord", tmp_path / "empty-folder"], "did you mean 'tensorboard'"),
        (["export", "mlflow", tmp_path / "empty-folder"], "holds no run"),
    ]  # fmt: skip


def test_mistakes_get_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capfd):
    """In one process, for speed; `main` is what the installed command calls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("UCFL_DATA", str(tmp_path / "no-data"))
    cases = mistakes(tmp_path)
    before = {str(p) for p in tmp_path.rglob("*")}
    for arguments, word in cases:
        monkeypatch.setattr(sys, "argv", ["ucfl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capfd.readouterr()
        assert stop.value.code == 2, (arguments, err)
        assert out == "", arguments
        assert err.startswith("ucfl: "), arguments
        assert err.count("\n") == 1, (arguments, err)
        assert any(part in err for part in word.split("|")), (arguments, err)
        assert {str(p) for p in tmp_path.rglob("*")} == before, arguments


def test_the_process_itself_exits_with_2_and_shows_no_traceback(tmp_path):
    done = ucfl("run", "rotated-mnits", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ucfl: unknown scenario")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on(data, tmp_path, number):
    options = ["run", data, "--model", "mlp", "--rounds", 200, "--out", tmp_path / "r"]
    process = subprocess.Popen(
        ucfl_command(*options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    said = process.stderr.readline(), process.stderr.readline()
    assert said[0].startswith("ucfl: executor: ")
    assert "round 20/200" in said[1]  # a tenth of the rounds is done
    process.send_signal(number)
    err = process.stderr.read()
    assert process.wait() == 130
    assert "--resume goes on" in err
    longer = [*options[:4], "--rounds", 201, *options[6:], "--resume"]
    assert ucfl(*longer, cwd=tmp_path).returncode == 0


def stopped_in(command, monkeypatch, capfd):
    """How the command line ends if this is what it does: exit code, standard error."""
    monkeypatch.setattr(cli, "app", lambda **_: command())
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # main puts its own there
    monkeypatch.setattr(sys, "argv", ["ucfl"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capfd.readouterr().err


def test_a_stop_that_a_library_turns_into_an_error_is_a_stop(tmp_path, monkeypatch, capfd):
    def write():
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            entry = archive.open("a", "w")
            entry.write(b"half")
            signal.raise_signal(signal.SIGTERM)  # the archive then says that it cannot be closed

    assert stopped_in(write, monkeypatch, capfd) == (130, "ucfl: stopped.\n")


def test_a_stop_that_our_reader_turns_into_an_error_is_a_stop(monkeypatch, capfd):
    def read():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise UcflError("a file is damaged; remove it.") from None

    assert stopped_in(read, monkeypatch, capfd) == (130, "ucfl: stopped.\n")


def test_a_stop_whose_rounds_cannot_be_written_says_so(monkeypatch, capfd):
    def write():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise NotWritten("no folder could take its 4 rounds.") from None

    said = "ucfl: no folder could take its 4 rounds.\n"
    assert stopped_in(write, monkeypatch, capfd) == (2, said)


def test_a_stop_that_is_dropped_in_a_destructor_is_silent(monkeypatch, capfd):
    class Closed:
        def __del__(self):
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                raise ValueError("it cannot be closed") from None

    def close():
        Closed()

    assert stopped_in(close, monkeypatch, capfd) == (0, "")


def test_an_error_that_no_stop_made_is_shown(monkeypatch, capfd):
    def stop():
        signal.raise_signal(signal.SIGTERM)

    def fail():
        raise ValueError("a mistake of ours")

    assert stopped_in(stop, monkeypatch, capfd)[0] == 130
    with pytest.raises(ValueError, match="a mistake of ours"):
        stopped_in(fail, monkeypatch, capfd)


def testseeds_from():
    assert seeds_from("0") == [0]
    assert seeds_from("0-2,7") == [0, 1, 2, 7]
    for bad in ("", "x", "1-", "-1"):
        with pytest.raises(UcflError):
            seeds_from(bad)


@pytest.mark.parametrize("command", ["", "run", "compare", "plan", "reproduce", "report", "figure"])
def test_help_for_everything(command):
    done = CliRunner().invoke(app, [*command.split(), "--help"])
    assert done.exit_code == 0
    assert "Usage" in done.stdout
