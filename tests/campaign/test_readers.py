"""No reader ends in an error that is none of ours, or takes memory that a file only claims."""

import gzip
import io
import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from campaign import readers
from campaign.readers import READERS
from ucfl.arrays import read_npz
from ucfl.errors import UcflError
from ucfl.runs.planning import Question
from ucfl.users import Users, acquire, dataset, fashion, find


def test_a_few_hundred_mutated_files_are_refused_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("UCFL_DATA", "")
    monkeypatch.setattr(acquire, "CIFAR10_EACH", readers.CIFAR10_EACH)
    monkeypatch.setattr(fashion, "EACH", readers.FASHION_EACH)
    wrong = readers.main(20 * len(READERS), 0)
    assert wrong == 0, capsys.readouterr().out


@pytest.mark.long
def test_twenty_thousand_mutated_files_are_refused_in_one_sentence(capfd):
    """In a process of its own, whose memory is limited; prints how each reader answered."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "campaign.readers", "20000", "1"]
    done = subprocess.run(command, env=environment)
    assert done.returncode == 0, capfd.readouterr().out


def npy_header(shape, descr="<f8"):
    """The start of an ``.npy`` file, without what it claims to hold."""
    stream = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


HUGE = npy_header((10**9, 10**9))


@pytest.fixture
def nothing_large(monkeypatch):
    """Whoever asks numpy for the array that a header claims has lost."""

    def refuse(stream, **_):
        pytest.fail("an array was allocated by what a header says")

    monkeypatch.setattr(np.lib.format, "read_array", refuse)


@pytest.mark.usefixtures("nothing_large")
@pytest.mark.parametrize("shape", [(10**9, 10**9), (10**18,), (2**63, 2), (-1, 8)])
def test_a_header_that_claims_more_than_its_file_is_refused_before_memory_is_asked_for(
    tmp_path, shape
):
    (tmp_path / "w.npy").write_bytes(npy_header(shape) + bytes(64))
    with pytest.raises(UcflError, match="its header does not fit its length"):
        Question.from_file(tmp_path / "w.npy", None)
    with zipfile.ZipFile(tmp_path / "u.npz", "w") as archive:
        archive.writestr("x.npy", npy_header(shape) + bytes(64))
    with pytest.raises(UcflError, match="its header does not fit its length"):
        Users.from_folder(tmp_path)


@pytest.mark.usefixtures("nothing_large")
def test_a_zip_that_claims_more_than_it_can_hold_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", HUGE + bytes(64))
        archive.infolist()[0].file_size = 1 << 31
    with pytest.raises(UcflError, match="it says that it holds more than it can"):
        read_npz(tmp_path / "a.npz", "write it again.")


def test_an_archive_larger_than_the_machine_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10_000))
    assert len(read_npz(tmp_path / "a.npz", "")["x"]) == 10_000
    monkeypatch.setattr("ucfl.arrays._memory", lambda: 50_000)
    with pytest.raises(UcflError, match="more than this machine's memory"):
        read_npz(tmp_path / "a.npz", "write it again.")


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([print], dtype=object))
    with pytest.raises(UcflError, match="something else than numbers"):
        Users.from_folder(tmp_path)


def test_an_idx_file_that_unpacks_to_more_than_it_says_is_refused(tmp_path):
    """Ten megabytes of zeros behind a header of one image: no more than that is unpacked."""
    header = struct.pack(">HBBIII", 0, 8, 3, 1, 28, 28)
    (tmp_path / "a.gz").write_bytes(gzip.compress(header + bytes(10 << 20)))
    with pytest.raises(UcflError, match="disagree"):
        dataset.read_idx(tmp_path / "a.gz")
    header = struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 2**31)
    (tmp_path / "a.gz").write_bytes(gzip.compress(header))
    with pytest.raises(UcflError, match="disagree"):
        dataset.read_idx(tmp_path / "a.gz")


def test_a_scenario_that_starts_from_itself_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text('base = "b.toml"')
    (tmp_path / "b.toml").write_text('base = "a.toml"')
    with pytest.raises(UcflError, match="starts from itself"):
        find("a.toml")
    (tmp_path / "a.toml").write_text("lr = " + "[" * 5000)
    with pytest.raises(UcflError, match="is not TOML"):
        find("a.toml")
