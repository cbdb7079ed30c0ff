"""A full disk, folders that are not one's own, no home, any umask: nothing is lost, all is said."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest

from runs.test_runs import quick, write_users
from ucfl import cli, paper
from ucfl.report import export, gather
from ucfl.runs import Run, checkpoint
from ucfl.runs.files import NotWritten, write_atomically
from ucfl.runs.folder import CHECKPOINT

COMMANDS = Path(__file__).parent / "commands.py"
#: Somebody without an entry in the list of users, and so without a home.
SOMEBODY = 54_321
OPTIONS = ["--algorithm", "fedavg", "--model", "mlp", "--set", "batch=4", "--device", "cpu"]
OPTIONS += ["--checkpoint-seconds", "0"]


@pytest.fixture
def place():
    """A folder that everybody can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        write_users(Path(folder) / "data")
        yield Path(folder)


def trained(place, out, *options, rounds=6):
    return ["run", place / "data", *OPTIONS, "--rounds", rounds, "--out", place / out, *options]


def step(arguments, **how):
    return {"arguments": [str(word) for word in arguments], **how}


def commands(place, *steps, uid=None, **environment):
    """Every step's exit code, and what it said on standard error in one line."""
    plan = place / "steps.json"
    plan.write_text(json.dumps({"steps": steps} | ({} if uid is None else {"uid": uid})))
    whole = {k: v for k, v in os.environ.items() if k not in ("HOME", "UCFL_DATA", "MPLCONFIGDIR")}
    whole |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    if uid is None:
        whole["HOME"] = str(place)
    command = [sys.executable, COMMANDS, plan]
    done = subprocess.run(command, env=whole, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for answer in answers:
        assert "Traceback" not in answer["err"], answer["err"]
    return [(answer["code"], " ".join(answer["err"].split())) for answer in answers]


def assert_same_history(one, other):
    frames = [Run.open(folder).history for folder in (one, other)]
    pd.testing.assert_frame_equal(*frames, check_exact=True)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_full_disk_loses_nothing(place):
    """No file may grow; a page and a figure are there from before."""
    whole, page, figure = trained(place, "whole"), place / "page.html", place / "figure.pdf"
    report = ["report", place / "whole", "--out", page]
    draw = ["figure", "mean", place / "whole", "--out", figure]
    said = commands(
        place,
        step(whole),
        step(trained(place, "gap"), full=[3, 4]),
        step(trained(place, "end"), full=[3, 99]),
        step(trained(place, "end", "--resume")),
        step(trained(place, "stop"), full=[3, 99], interrupt=5),
        step(trained(place, "stop", "--resume")),
        step(trained(place, "start"), full=[0, 99]),
        step(trained(place, "gap", "--fresh", rounds=9), full=[0, 99]),
        step(report),
        step(report, full=[0, 99]),
        step(draw),
        step(draw, full=[0, 99]),
    )
    codes = [code for code, _ in said]
    assert codes == [0, 0, 2, 0, 2, 0, 2, 2, 0, 2, 0, 2], said
    gap, end, stop, start, fresh = (said[i][1] for i in (1, 2, 4, 6, 7))
    # The checkpoint of round t is written before round t + 1 begins.
    assert gap.count("training goes on, and the checkpoint is tried again") == 2
    assert "rounds up to 4 would be lost" in gap
    assert "could take its 6 rounds either: free some space, and --resume goes on" in end
    assert "could take its 4 rounds either" in stop
    for text in (start, fresh, said[9][1], said[11][1]):
        assert "cannot be written (" in text
        assert "free some space" in text
    for folder in ("gap", "end", "stop"):
        assert_same_history(place / folder, place / "whole")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert page.read_text().rstrip().endswith("</html>")
    assert figure.read_bytes().rstrip().endswith(b"%%EOF")
    kept = ["data", "end", "figure.pdf", "gap", "page.html", "start", "steps.json", "stop", "whole"]
    assert [name for name in names(place) if name not in (".cache", ".config")] == kept
    for folder in ("gap", "end", "stop", "whole"):
        assert len(names(place / folder)) == 3


@pytest.fixture
def small_disk(place):
    """A file system of 2 MB."""
    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow a small file system to be mounted")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_really_is_full(place, small_disk, monkeypatch, capsys):
    """Rounds go to the folder for temporary files, and the sentence says how they come back."""
    (place / "elsewhere").mkdir()
    full = {"full": [3, 99], "filler": str(small_disk / "filler")}
    gap = {"full": [3, 4], "filler": str(small_disk / "filler")}
    (code, _), (code_gap, said_gap), (code_full, said) = commands(
        place,
        step(trained(place, "whole")),
        step(trained(place, "disk/gap"), **gap),
        step(trained(place, "disk/r"), **full),
        TMPDIR=str(place / "elsewhere"),
    )
    assert (code, code_gap, code_full) == (0, 0, 2), said_gap
    assert "No space left on device" in said_gap
    assert "No space left on device" in said
    assert_same_history(small_disk / "gap", place / "whole")
    (aside,) = (place / "elsewhere").glob("r-round6-*")
    file = aside / CHECKPOINT
    assert f"rounds are in {file}: free some space, move that file to {small_disk}" in said
    shutil.move(file, small_disk / "r" / CHECKPOINT)
    resume = trained(place, "disk/r", "--resume")
    monkeypatch.setattr(sys, "argv", ["ucfl", *map(str, resume)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert "round 6" not in capsys.readouterr().err  # nothing was trained again
    assert_same_history(small_disk / "r", place / "whole")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_folders_of_others_and_no_home(place):
    """Somebody without a home, in folders that may be read only, or not at all."""
    mine, shared, secret = place / "mine", place / "shared", place / "secret"
    for folder in (mine, shared):
        folder.mkdir()
    os.chown(mine, SOMEBODY, SOMEBODY)
    quick(place / "theirs")
    quick(secret)
    secret.chmod(0o700)
    shutil.copytree(place / "theirs", shared / "r")
    shared.chmod(0o1777)  # as /tmp is: everybody may write, nobody may remove what others have
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    said = commands(
        place,
        step(trained(place, "mine/r")),
        step(trained(place, "r")),
        step(["report", place / "theirs"]),
        step(["report", place / "theirs", "--out", mine / "page.html"]),
        step(["report", place / "theirs", "--text"]),
        step(["report", secret]),
        step(trained(place, "theirs", "--resume")),
        step(trained(place, "theirs", "--fresh")),
        step(trained(place, "shared/r", "--fresh")),
        step(["data"]),
        step(["run", "emnist-label-shift"]),
        step(["figure", "mean", mine / "r", "--out", mine / "f.png"]),
        uid=SOMEBODY,
    )
    assert [code for code, _ in said] == [0, 2, 2, 0, 0, 2, 2, 2, 2, 2, 2, 0], said
    for place_of, words in (
        (1, "cannot be written (Permission denied); give --out another folder"),
        (2, "cannot be written (Permission denied); free some space there, or give --out"),
        (5, "is not readable"),
        (6, "cannot be written (Permission denied); give --out another folder"),
        (7, "cannot be written (Permission denied); give --out another folder"),
        (8, "cannot be written (Operation not permitted); give --out another folder"),
        (9, "there is no home folder to keep data sets in; set UCFL_DATA."),
        (10, "set UCFL_DATA"),
    ):
        assert words in said[place_of][1], said[place_of]
    assert "--fresh" not in said[5][1]  # it is whole, and not theirs to replace
    after = {path: path.read_bytes() for path in before if path.name != "steps.json"}
    assert after == {path: text for path, text in before.items() if path.name != "steps.json"}
    assert names(shared) == ["r"]
    assert (mine / "page.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize(("umask", "file", "folder"), [(0o077, 0o600, 0o700), (0, 0o666, 0o777)])
def test_permissions_are_what_the_umask_says(tmp_path, umask, file, folder):
    before = os.umask(umask)
    try:
        run = quick(tmp_path / "new" / "r")
        write_atomically(tmp_path / "page.html", lambda path: path.write_text("page"))
        store = paper.Store(tmp_path / "results")
        write_atomically(store.folder / "cells" / "a", lambda path: path.write_bytes(b""))
    finally:
        os.umask(before)
    made = [*run.folder.iterdir(), tmp_path / "page.html", store.folder / "cells" / "a"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {file}
    folders = [run.folder, run.folder.parent, store.folder, store.folder / "cells"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {folder}


def test_a_history_that_cannot_be_written_leaves_the_rounds_where_they_are(tmp_path, monkeypatch):
    def refuse(folder, point):
        raise NotWritten("history.parquet cannot be written (No space left on device)")

    expected = quick(tmp_path / "whole")
    monkeypatch.setattr("ucfl.runs.keep.write_history", refuse)
    with pytest.raises(NotWritten, match=f"4 rounds are in {tmp_path / 'r' / CHECKPOINT}: free"):
        quick(tmp_path / "r")
    monkeypatch.undo()
    rounds = []
    resumed = quick(tmp_path / "r", resume=True, on_round=rounds.append)
    assert rounds == []
    pd.testing.assert_frame_equal(resumed.history, expected.history, check_exact=True)


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # users are tiny
def test_a_full_disk_keeps_finished_cells_and_what_is_trained(tmp_path, monkeypatch):
    """The second of two cells cannot be kept; the next attempt finds its run finished."""
    form = paper.EMBEDDED.with_rounds(2)
    cells = paper.in_order(paper.find(["fig-accuracy"]), form, (0,))[:2]
    store, save, saved = paper.Store(tmp_path), paper.Store.save, []

    def full(self, cell, record):
        saved.append(cell)
        if len(saved) == 2:
            raise NotWritten(f"{self.file(cell)} cannot be written (No space left)")
        save(self, cell, record)

    monkeypatch.setattr(paper.Store, "save", full)
    with pytest.raises(NotWritten):
        paper.run_cells(cells, store, device="cpu")
    assert len(paper.survey(cells, store, "cpu").done) == 1
    rounds = []
    assert paper.run_cells(cells[1:], store, device="cpu", on_round=rounds.append)
    assert rounds == []  # its run was finished, and is kept now
    assert len(paper.survey(cells, store, "cpu").done) == 2


@pytest.mark.filterwarnings("ignore::ucfl.errors.UcflWarning")  # users are tiny
def test_a_cell_whose_checkpoint_cannot_be_written_does_not_start_again(tmp_path, monkeypatch):
    form = paper.EMBEDDED.with_rounds(2)
    cells = paper.in_order(paper.find(["fig-accuracy"]), form, (0,))[:1]
    said, rounds, save, saved = [], [], checkpoint.save_file, []

    def full(*arguments):
        saved.append(arguments)
        if len(saved) > 1:
            raise OSError(28, "No space left on device")
        save(*arguments)

    monkeypatch.setattr("ucfl.runs.checkpoint.save_file", full)
    monkeypatch.setattr("ucfl.paper.reproduce.CHECKPOINT_SECONDS", 0)
    with pytest.raises(NotWritten, match="No space left on device"):
        paper.run_cells(
            cells, paper.Store(tmp_path), device="cpu", on_round=rounds.append, on_note=said.append
        )
    assert [progress.round for progress in rounds] == [1, 2]
    assert not [text for text in said if "starts again" in text]


class HalfWriter:
    """A stand-in for TensorBoard's, on a disk that is full after the first run."""

    made = 0

    def __init__(self, folder):
        HalfWriter.made += 1
        Path(folder).mkdir(parents=True)
        (Path(folder) / "events").write_text("half")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if HalfWriter.made > 1:
            raise OSError(28, "No space left on device")

    def add_text(self, *_):
        pass

    def add_scalar(self, *_):
        pass


def test_an_export_leaves_all_or_nothing(tmp_path, monkeypatch):
    for seed in (0, 1):
        quick(tmp_path / "runs" / str(seed), seed=seed)
    HalfWriter.made = 0
    board = type("board", (), {"SummaryWriter": HalfWriter})
    monkeypatch.setattr(export, "_extra", lambda *_: board)
    with pytest.raises(NotWritten, match=r"No space left on device.*--to another place"):
        export.to_tensorboard(gather([tmp_path / "runs"]), str(tmp_path / "board"))
    assert names(tmp_path / "board") == []
    monkeypatch.setattr(HalfWriter, "__exit__", lambda *_: None)
    export.to_tensorboard(gather([tmp_path / "runs"]), str(tmp_path / "board"))
    assert names(tmp_path / "board") == ["0", "1"]
    assert names(tmp_path / "board" / "0") == ["events"]
