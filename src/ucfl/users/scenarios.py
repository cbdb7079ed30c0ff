"""Named, complete settings, and those of a person's own files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from ucfl.errors import UcflError, first_line, unknown
from ucfl.users.effects import is_folder
from ucfl.users.folders import holds_images
from ucfl.users.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="rotated-mnist",
            description="MNIST-5k, four groups rotated by 0/90/180/270 degrees; no download",
            groups=4,
            rotations=(0, 90, 180, 270),
            lr=0.05,
            batch=10,
            rounds=30,
        ),
        Scenario(
            name="emnist-label-shift",
            description="EMNIST, each user its own mix of the 62 characters (paper, sec. V-A)",
            dataset="emnist",
            points=12_500,
            split="dirichlet",
            alpha=0.4,
            rounds=300,
            variance_batch=20,
        ),
        Scenario(
            name="emnist-covariate-shift",
            description="EMNIST, label shift and four groups of rotated images (paper, sec. V-A)",
            dataset="emnist",
            users=100,
            points=125_000,
            split="dirichlet",
            alpha=8,
            groups=4,
            rotations=(0, 90, 180, 270),
            rounds=300,
        ),
        Scenario(
            name="emnist-label-shift-100",
            description="EMNIST label shift with 100 users and ten times the data (sec. V-F)",
            dataset="emnist",
            users=100,
            points=125_000,
            split="dirichlet",
            alpha=0.4,
        ),
        Scenario(
            name="cifar10-concept-shift",
            description="CIFAR-10, four groups with permuted labels (paper, sec. V-A)",
            dataset="cifar10",
            test_images=1000,
            groups=4,
            permute_labels=True,
            lr=0.01,
            rounds=300,
        ),
        Scenario(
            name="cifar10-covariate-label-shift",
            description="CIFAR-10, label shift and four groups of rotated images (sec. V-E)",
            dataset="cifar10",
            split="dirichlet",
            alpha=8,
            groups=4,
            rotations=(0, 90, 180, 270),
            lr=0.01,
            rounds=300,
        ),
        Scenario(
            name="mnist-writers",
            description="MNIST, a user for each of its 539 writers; 297 others come later",
            dataset="qmnist",
            split="natural",
            lr=0.05,
            batch=10,
            rounds=50,
        ),
        Scenario(
            name="shakespeare-roles",
            description="Shakespeare's plays, a user for each of 438 roles; the next character",
            dataset="shakespeare",
            split="natural",
            objective="next-token",
            model="character-lstm",
            lr=0.5,
            batch=10,
            rounds=50,
            newcomers=0.1,
        ),
        Scenario(
            name="shakespeare-transformer",
            description="the same roles with a small transformer",
            dataset="shakespeare",
            split="natural",
            objective="next-token",
            model="character-transformer",
            lr=0.1,
            batch=10,
            rounds=50,
            newcomers=0.1,
        ),
        Scenario(
            name="watch-people",
            description="shoulder exercises by smartwatch, a user for each of 10 people",
            dataset="watch",
            split="natural",
            model="cnn1d",
            lr=0.01,
            batch=10,
            rounds=100,
        ),
    )
}


def find(name: str) -> Scenario:
    """A scenario by its name, read from a TOML file, or made of a folder with a file per user.

    Args:
        name: The name, the ``.toml`` file or the folder.

    Examples:
        >>> import ucfl
        >>> ucfl.users.find("rotated-mnist").change({"users": 8}).users
        8
    """
    if name in SCENARIOS:
        return SCENARIOS[name]
    if name.endswith(".toml"):
        return _read(Path(name))
    if is_folder(name):
        model = "lenet5" if holds_images(Path(name), smallest=16) else "mlp"
        return Scenario(name=Path(name).resolve().name, dataset=name, model=model)
    raise unknown(
        "scenario", name, SCENARIOS, "A .toml file or a folder of .npz or .csv files works too."
    )


def _read(file: Path, above: tuple[Path, ...] = ()) -> Scenario:
    """The scenario of a TOML file; ``above`` are the files that start from it."""
    try:
        fields = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UcflError(f"{file} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UcflError(f"{file} is not TOML: {first_line(error)}.") from error
    base = str(fields.pop("base", ""))
    if not base:
        start = Scenario()
    elif not base.endswith(".toml"):
        start = find(base)
    elif Path(base) in (file, *above):
        raise UcflError(f"{file} starts from itself; name another base.")
    else:
        start = _read(Path(base), (file, *above))
    return start.change({"name": file.stem, **fields})


def to_toml(scenario: Scenario) -> str:
    """The scenario as a TOML file that ``ucfl run FILE.toml`` takes."""
    lines, idle = [], scenario.without_effect()
    for name, field in type(scenario).model_fields.items():
        value = getattr(scenario, name)
        comment = f"  # {field.description}" if field.description else ""
        if value is None or name in idle:
            lines.append(f"# {name} ={comment}")
        else:
            plain = list(value) if isinstance(value, tuple) else value
            lines.append(f"{name} = {json.dumps(plain)}{comment}")
    return "\n".join(lines)
