import numpy as np
import pytest

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


@pytest.mark.parametrize(("classes", "groups"), [(10, 4), (10, 20), (2, 2), (2, 5), (1, 3)])
def test_label_permutations_are_distinct_while_possible(classes, groups):
    drawn = shifts.label_permutations(classes, groups, np.random.default_rng(0))
    assert len(drawn) == groups
    assert all(sorted(p) == list(range(classes)) for p in drawn)
    possible = {1: 1, 2: 2}.get(classes, groups)
    assert len({tuple(p) for p in drawn}) == min(groups, possible)
