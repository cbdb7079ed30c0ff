import numpy as np
import pytest

from ucfl.errors import UcflError
from ucfl.users import shifts


def test_quarter_turns_move_pixels_and_change_none():
    images = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    assert np.array_equal(shifts.rotate(images, 0), images)
    once = shifts.rotate(images, 90)
    assert np.array_equal(once[0, 0], np.rot90(images[0, 0]))
    assert np.array_equal(shifts.rotate(once, 270), images)
    assert np.array_equal(shifts.rotate(images, -90), shifts.rotate(images, 270))


def test_other_angles_turn_the_same_way():
    image = np.zeros((1, 1, 21, 21))
    image[0, 0, 10, 18] = 1.0  # to the right of the centre
    turned = shifts.rotate(image, 45)
    row, column = np.unravel_index(turned.argmax(), (1, 1, 21, 21))[2:]
    assert row < 10 < column  # counter-clockwise: up and right


def test_groups_are_blocks_of_nearly_equal_size():
    assert shifts.group_of_users(6, 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert np.ptp(np.bincount(shifts.group_of_users(23, 4))) <= 1


def test_groups_follow_their_shares():
    assert shifts.group_of_users(7, 3, (1, 2, 4)).tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert np.bincount(shifts.group_of_users(20, 2, (0.001, 1))).tolist() == [1, 19]


@pytest.mark.parametrize(("classes", "groups"), [(10, 4), (10, 10), (2, 2), (1, 1), (62, 5)])
def test_conflicting_permutations_agree_on_no_label(classes, groups):
    drawn = shifts.conflicting_permutations(classes, groups, np.random.default_rng(0))
    assert all(sorted(p) == list(range(classes)) for p in drawn)
    assert len(drawn) == groups
    for i in range(groups):
        assert not any((drawn[i] == drawn[j]).any() for j in range(i))
    other = shifts.conflicting_permutations(classes, groups, np.random.default_rng(1))
    assert classes < 3 or not all(map(np.array_equal, drawn, other))


def test_more_groups_than_labels_cannot_conflict():
    with pytest.raises(UcflError, match="11 groups cannot disagree on every one of 10 labels"):
        shifts.conflicting_permutations(10, 11, np.random.default_rng(0))


def test_scrambling_moves_pixels_alike_in_all_images_and_channels():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 3, 5, 5), dtype=np.uint8)
    order = rng.permutation(25)
    scrambled = shifts.scramble(images, order)
    assert np.array_equal(shifts.scramble(scrambled, np.argsort(order)), images)
    assert scrambled[2, 1, 0, 3] == images[2, 1].ravel()[order[3]]


@pytest.mark.parametrize(("classes", "groups"), [(10, 4), (10, 20), (2, 2), (2, 5), (1, 3)])
def test_label_permutations_are_distinct_while_possible(classes, groups):
    drawn = shifts.label_permutations(classes, groups, np.random.default_rng(0))
    assert len(drawn) == groups
    assert all(sorted(p) == list(range(classes)) for p in drawn)
    possible = {1: 1, 2: 2}.get(classes, groups)
    assert len({tuple(p) for p in drawn}) == min(groups, possible)
