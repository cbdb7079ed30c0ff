"""A pickle is read, and nothing in it is run."""

import os
import pickle
import struct

import numpy as np
import pytest

from ucfl.errors import UcflError
from ucfl.users.unpickle import PickledArray, read_pickled_npy
from users.people import recordings, write_pickled, write_watch


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


class Instance:
    """Harmless, but none of ours."""


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_and_containers_come_back(tmp_path, protocol):
    contents = recordings()
    found = read_pickled_npy(write_watch(tmp_path / "a.npy", contents, protocol), "")
    assert isinstance(found["X"][3], PickledArray)
    for mine, theirs in zip(found["X"], contents["X"], strict=True):
        assert np.array_equal(mine.numbers, theirs)
    assert np.array_equal(found["y"].numbers, contents["y"])
    assert found["y_labels"] == contents["y_labels"]


def test_columns_and_foreign_byte_orders_come_back(tmp_path):
    numbers = np.arange(12.0).reshape(3, 4)
    for array in (np.asfortranarray(numbers), numbers.astype(">f8"), numbers.astype("<i4")):
        found = read_pickled_npy(write_watch(tmp_path / "a.npy", {"x": array}), "")
        assert np.array_equal(found["x"].numbers, numbers)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("inside", [Evil(), [Evil()], {"X": Evil()}, Instance(), print, {1, 2}])
def test_what_would_run_something_is_refused_and_does_not_run(
    tmp_path, monkeypatch, inside, protocol
):
    monkeypatch.chdir(tmp_path)
    file = write_watch(tmp_path / "a.npy", inside, protocol)
    with pytest.raises(UcflError, match="something else than") as caught:
        read_pickled_npy(file, "get it again.")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"cos\nsystem\n(S'touch hacked'\ntR.",
        b"\x80\x02cnumpy\nload\nX\x01\x00\x00\x00a\x85R.",  # another function of NumPy
        b"\x80\x02cnumpy.core.multiarray\nscalar\n)R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
        b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.dump\x93.",
    ],
)
def test_pickles_by_hand_are_refused(tmp_path, monkeypatch, pickled):
    monkeypatch.chdir(tmp_path)
    write_pickled(tmp_path / "a.npy", pickled)
    with pytest.raises(UcflError, match="is damaged"):
        read_pickled_npy(tmp_path / "a.npy", "get it again.")
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"few.",  # BINBYTES8 of a terabyte
        b"\x80\x02Nr" + struct.pack("<I", (1 << 32) - 1) + b".",  # a place in a memo of as many
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",  # a frame
    ],
)
def test_what_claims_to_be_large_is_refused_before_memory_is_asked_for(tmp_path, pickled):
    write_pickled(tmp_path / "a.npy", pickled)
    with pytest.raises(UcflError, match="is damaged") as caught:
        read_pickled_npy(tmp_path / "a.npy", "get it again.")
    assert not isinstance(caught.value.__cause__, MemoryError)


def test_an_array_that_claims_more_than_it_holds_is_refused(tmp_path):
    whole = pickle.dumps(np.arange(3), protocol=2)
    shape = b"K\x03\x85"
    assert whole.count(shape) == 1
    write_pickled(tmp_path / "a.npy", whole.replace(shape, b"J\xff\xff\xff\x7f\x85"))
    with pytest.raises(UcflError, match="shape and its contents disagree"):
        read_pickled_npy(tmp_path / "a.npy", "get it again.")


def test_plain_arrays_and_other_files_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(UcflError, match="does not hold one object"):
        read_pickled_npy(tmp_path / "a.npy", "get it again.")
    with pytest.raises(UcflError, match="cannot be read"):
        read_pickled_npy(tmp_path / "none.npy", "get it again.")
