"""What decides nothing beside something else: fields of a scenario that belong together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ucfl.users import datasets
from ucfl.users.folders import user_files

if TYPE_CHECKING:
    from ucfl.users.scenario import Scenario

#: How users are made of a data set, beside their number and groups; a folder's are there already.
HOW_A_DATA_SET_IS_SPLIT = (
    "points", "split", "alpha", "sizes", "classes_per_user", "sigma", "fewest", "test_images",
    "group_shares", "rotations", "permute_pixels", "permute_labels",
)  # fmt: skip
#: Fields that one way to split has, and no other.
OF_A_SPLIT = {
    "alpha": "dirichlet",
    "sizes": "sizes",
    "classes_per_user": "classes",
    "sigma": "lognormal",
    "fewest": "natural",
}
#: The same, with what also decides of a folder.
HOW_USERS_ARE_MADE = ("held_out", "target_column", *HOW_A_DATA_SET_IS_SPLIT)
#: All that says who the users are: equal users may come by other ways.
OF_USERS = ("dataset", "users", "groups", *HOW_USERS_ARE_MADE)
#: Fields that mean something beside a value of another one.
BELONGS_TO = {
    **dict.fromkeys(OF_A_SPLIT, "split"),
    "users": "fewest",  # the people that are left follow from it
    "held_out": "test_images",
    "target_column": "dataset",
    "momentum": "optimiser",
}


def without_effect(scenario: Scenario) -> dict[str, str]:
    """Fields that decide nothing in a scenario, and a sentence about each."""
    found = {}
    if scenario.optimiser not in ("sgd", "nesterov"):
        found["momentum"] = (
            f"'momentum' has no effect on {scenario.optimiser}, which has its own; leave it out."
        )
    if scenario.deadline is None:
        found["system"] = (
            "'system' has no effect without a deadline; leave it out, or set a deadline."
        )
    if is_folder(scenario.dataset):
        there = len(user_files(Path(scenario.dataset)))
        for field in ("users", *HOW_A_DATA_SET_IS_SPLIT):
            if field != "users" or scenario.users != there:
                found[field] = (
                    f"the {there} users of {scenario.dataset} are taken as they are, so {field!r} "
                    "has no effect; leave it out, and name the folder in place of a scenario."
                )
        return found
    found["target_column"] = (
        "'target_column' names a column of .csv files, so it has no effect on "
        f"{scenario.dataset}; leave it out, or name the folder of those files as the scenario."
    )
    if scenario.split == "natural":
        for field in ("users", "points", "test_images"):
            found[field] = (
                f"with split 'natural' the users are the people of {scenario.dataset} with all "
                f"their examples, so {field!r} has no effect; leave it out."
            )
    if scenario.groups == 1:
        found["group_shares"] = (
            "'group_shares' has no effect on one group; leave it out, or set groups."
        )
    for field, split in OF_A_SPLIT.items():
        if scenario.split != split:
            found[field] = (
                f"{field!r} has no effect with split {scenario.split!r}; leave it out, or set "
                f"split = {split!r}."
            )
    if scenario.test_images is not None:
        found["held_out"] = (
            "'held_out' has no effect beside test_images, which decides what users are tested "
            "on; leave one of them out."
        )
    return found


def is_folder(dataset: str) -> bool:
    """Whether a data set is a folder of a person's own."""
    try:
        return dataset not in datasets.LOADERS and Path(dataset).is_dir()
    except OSError:  # too long for a name
        return False
