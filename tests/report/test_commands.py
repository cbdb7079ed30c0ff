"""`ucfl report`, `figure`, `watch` and `export` as a person types them."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

from commands import run_ucfl, ucfl_command
from runs.test_runs import write_users
from stories import learnt_first
from ucfl import cli
from ucfl.errors import UcflError
from ucfl.report import FIGURES, follow
from ucfl.report.export import to_mlflow, to_tensorboard


@pytest.fixture
def ucfl(monkeypatch, capfd):
    """The command line, in this process for speed: exit code and what was printed."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["ucfl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capfd.readouterr()
        return stop.value.code, out, err

    return command


def test_report_writes_the_page_and_says_where(ucfl, folder, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("typer.launch", opened.append)
    file = tmp_path / "page.html"
    assert ucfl("report", folder, "--out", file) == (0, f"The report is in {file}\n", "")
    assert file.read_text().startswith("<!DOCTYPE html>")
    assert opened == []
    ucfl("report", folder, "--out", file, "--open")
    assert opened == [str(file)]


def test_report_takes_single_runs_and_puts_the_page_beside_them(ucfl, runs, story):
    each = [run.folder for found in runs.values() for run in found]
    code, out, _ = ucfl("report", *each)
    assert (code, out) == (0, f"The report is in {each[0] / 'report.html'}\n")
    (each[0] / "report.html").unlink()
    told = json.loads(ucfl("report", *each, "--json")[1])
    assert {m["label"] for m in told["methods"]} == {m["label"] for m in story["methods"]}


def test_the_terminal_tells_the_same_story(ucfl, folder, story):
    code, out, _ = ucfl("report", folder, "--text")
    assert code == 0
    for sentence in story["answer"]:
        assert sentence in out
    for method in story["methods"]:
        final = method["final"]
        assert f"{final['mean']:.1f} ± {final['deviation']:.1f}" in out
    assert learnt_first(story["populations"][0])["reason"] in out
    for rival in ("fedavg", "local"):
        assert f"better off with {rival} than with {story['personal']}" in out
    assert "Repeat it with" not in out  # it was made from Python
    assert story["repeat"]["programs"][0] in out
    assert "\x1b" not in out


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_in_a_columns_width(ucfl, folder, tmp_path, name):
    code, _, err = ucfl("figure", name, folder, "--out", tmp_path / "f.png")
    assert code == 0, err
    with Image.open(tmp_path / "f.png") as picture:
        assert picture.width == 1050
        assert np.asarray(picture.convert("L")).std() > 5  # not an empty sheet


def test_figures_for_two_columns_another_network_and_another_format(ucfl, folder, tmp_path):
    options = ["--system", "urban-macro", "--target", "40", "--wide"]
    code, out, err = ucfl("figure", "time-to-target", folder, *options, "--out", tmp_path / "f.pdf")
    assert code == 0, err
    assert out == f"The figure is in {tmp_path / 'f.pdf'}\n"
    assert b"/MediaBox [ 0 0 515.52 " in (tmp_path / "f.pdf").read_bytes()


def test_figures_that_these_runs_cannot_give_are_refused(ucfl, runs, tmp_path):
    local, file = runs["local"][0].folder, tmp_path / "f.pdf"
    for name, word in (("weights", "write collaboration(state)"), ("time-to-target", "--target")):
        code, out, err = ucfl("figure", name, local, "--out", file)
        assert (code, out) == (2, "")
        assert word in err
    assert not file.exists()


def test_watch_follows_a_run_of_another_process_to_its_end(tmp_path):
    write_users(tmp_path / "data")
    out = tmp_path / "r"
    train = ["run", tmp_path / "data", "--model", "mlp", "--rounds", 150, "--out", out]
    trainer = subprocess.Popen(
        ucfl_command(*train, "--checkpoint-seconds", 0),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (out / "run.json").exists():
        assert trainer.poll() is None
    done = run_ucfl("watch", out)
    assert trainer.wait() == 0
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"fedavg: round {15 * tenth}/150" for tenth in range(1, 11)
    ]
    assert "\x1b" not in done.stderr


def test_a_finished_run_is_watched_at_once(runs):
    run = runs["fedavg"][0]
    seen = list(follow(run.folder))
    assert [progress.round for progress in seen] == [1, 2, 3, 4]
    assert seen[-1].mean == pytest.approx(run.summary["mean"]["final"])
    assert seen[-1].worst == pytest.approx(run.summary["worst"]["final"])


def test_one_run_is_watched_at_a_time(folder):
    with pytest.raises(UcflError, match="holds 8 runs; watch one"):
        next(follow(folder))


def apart(code, *arguments):
    """What the code prints as JSON, in a process of its own: both packages start threads."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def export(kind, *arguments):
    """The exit code and what was said; without the extra, one sentence."""
    done = run_ucfl("export", kind, *arguments)
    if find_spec(kind) is None:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"pip install 'ucfl[{kind}]'" in done.stderr
        pytest.skip(f"{kind} is not installed here; the sentence that says so was checked")
    assert done.returncode == 0, done.stderr


def test_tensorboard_has_every_round(runs, folder, tmp_path):
    export("tensorboard", folder, "--to", tmp_path)
    run = runs["fedavg"][1]
    code = """if True:
        import json, sys
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        events = EventAccumulator(sys.argv[1]).Reload()
        names = ("test_accuracy/mean", "models/down")
        print(json.dumps([[(e.step, e.value) for e in events.Scalars(n)] for n in names]))"""
    accuracy, down = apart(code, tmp_path / run.folder.name)
    assert [step for step, _ in accuracy] == [0, 1, 2, 3, 4]
    assert accuracy[-1][1] == pytest.approx(run.summary["mean"]["final"], abs=1e-4)
    assert down == [[step, 1] for step in (1, 2, 3, 4)]


def test_mlflow_has_every_round(runs, tmp_path):
    run, uri = runs["fedavg"][1], f"sqlite:///{tmp_path / 'mlflow.db'}"
    export("mlflow", run.folder, "--to", uri)
    code = """if True:
        import json, sys, mlflow
        client = mlflow.MlflowClient(tracking_uri=sys.argv[1])
        (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
        found = client.get_metric_history(run.info.run_id, "test_accuracy/mean")
        print(json.dumps([run.data.params["algorithm"], [(m.step, m.value) for m in found]]))"""
    algorithm, accuracy = apart(code, uri)
    assert algorithm == "fedavg"
    assert [step for step, _ in accuracy] == [0, 1, 2, 3, 4]
    assert accuracy[-1][1] == pytest.approx(run.summary["mean"]["final"])


def test_models_are_written_user_by_user(ucfl, runs, folder, tmp_path):
    one, there = runs["local"][0], tmp_path / "models"
    said = (0, f"The models are in {there}\n", "")
    assert ucfl("export", "models", one.folder, "--to", there) == said
    assert {place.stem for place in there.iterdir()} == {*one.names, "models"}
    code, _, err = ucfl("export", "models", one.folder, "--to", there)
    assert (code, err.count("\n")) == (2, 1)
    assert "holds models already; replace them with fresh=True (--fresh)" in err
    assert ucfl("export", "models", one.folder, "--to", there, "--fresh") == said
    code, _, err = ucfl("export", "tensorboard", one.folder, "--fresh")
    assert (code, err) == (2, "ucfl: --fresh has no effect on tensorboard; leave it out.\n")
    ucfl("export", "models", folder, "--to", tmp_path / "all")
    every = {run.folder.name for each in runs.values() for run in each}
    assert {place.name for place in (tmp_path / "all").iterdir()} == every


def test_a_tracking_uri_that_nothing_answers_is_one_sentence(runs, tmp_path):
    done = run_ucfl("export", "mlflow", runs["fedavg"][0].folder, "--to", "nonsense://x")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ucfl: ")


@pytest.mark.parametrize("exporter", [to_tensorboard, to_mlflow])
def test_a_missing_extra_is_one_sentence(monkeypatch, runs, exporter):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(UcflError, match=r"pip install 'ucfl\[.*or in a clone pip install -e"):
        exporter(runs)
