"""Users' models out of a run: as modules, and as files."""

from __future__ import annotations

import copy
import json
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from ucfl import distributed
from ucfl.algorithms import State
from ucfl.errors import UcflError, UcflWarning, first_line, unreadable
from ucfl.federation import MODELS, Architecture, Deployed, create
from ucfl.runs.checkpoint import Checkpoint, before, checkpoint_name
from ucfl.runs.files import NotWritten
from ucfl.seeding import seeded
from ucfl.users.given import OWN_MODEL
from ucfl.users.names import place_of

if TYPE_CHECKING:
    from ucfl.runs.folder import Run

#: Which file is whose, and how to load it.
INDEX = "models.json"
SUFFIX = ".safetensors"
#: Beside run.json where users were on machines of their own: who is who, and what was sent.
BETWEEN_MACHINES = "deployed.json"
CPU = torch.device("cpu")
#: A person's own model, given again: any instance of it, or ``module:factory``.
GivenModel = nn.Module | str


def model(run: Run, user: int | str, given: GivenModel | None = None) -> nn.Module:
    """The model that a user would deploy, with inputs as its data has them."""
    place = place_of(user, run.names)
    if place in run.dropped:
        _warn_of_dropped(run, place)
    return next(_models(run, [place], given))


def _models(run: Run, places: Sequence[int], given: GivenModel | None) -> Iterator[nn.Module]:
    """The models of some users, in the order of their places."""
    if (run.folder / BETWEEN_MACHINES).exists():
        raise UcflError(
            f"the users of {run.folder} were on machines of their own, which keep their models: "
            "each one's --state folder has model.safetensors."
        )
    architecture, inputs = _architecture(run, given), getattr(torch, _stored(run, "input_type"))
    algorithm = run.load_algorithm()
    for rank, share in enumerate(distributed.shares(run.users, _processes(run))):
        theirs = [place for place in places if place in share]
        state = _state(run, rank) if theirs else {}
        for place in theirs:
            with seeded(run.seed):  # layers that are made draw weights
                module = algorithm.model(architecture, state, place - share.start)
            yield Deployed(module, inputs, architecture.rows.dtype)


def _architecture(run: Run, given: GivenModel | None) -> Architecture:
    """The layers of the run's model: given, as trained in this process, or made again by name."""
    known, shape = run.architecture, tuple(_stored(run, "input_shape"))
    aim = run.scenario.objective if known is None else known.aim
    template = given if known is None or given is not None else known.template
    if template is None:
        template = _made(run, shape)
    elif isinstance(template, str):
        template = create(template, shape, _stored(run, "outputs"), run.seed)
    if not isinstance(template, nn.Module):
        kind = type(template).__name__
        raise UcflError(
            "model= takes a torch.nn.Module, such as MyModel(), or 'module:factory', and not a "
            f"{kind}."
        )
    found = Architecture(copy.deepcopy(template).cpu(), shape, aim)
    _check_tensors(found.rows.shapes, run.about.get("tensors") or found.rows.shapes)
    return found


def _made(run: Run, shape: tuple[int, ...]) -> nn.Module:
    """The run's model by its name, with its first weights or others."""
    name = run.scenario.model_name
    if not _is_named(name):
        raise UcflError(
            f"the run's model is one of your own ({name}), which its folder does not hold; give it "
            "again, as model=MyModel() (in Python) or --model module:factory."
        )
    return create(name, shape, _stored(run, "outputs"), run.seed)


def _check_tensors(found: dict[str, list[int]], trained: dict[str, list[int]]) -> None:
    """Raise unless a model has the parameters and buffers that were trained, in their order."""
    if apart := [name for name in trained if found.get(name) != trained[name]]:
        first, shape = apart[0], tuple(trained[apart[0]])
        raise UcflError(
            f"the model is not the one that was trained: it has no parameter or buffer {first!r} "
            f"of shape {shape}; give the one that was, as model=."
        )
    if list(found) != list(trained):
        raise UcflError(
            "the model is not the one that was trained: it has other parameters or buffers, or "
            "another order of them; give the one that was, as model=."
        )


def _stored(run: Run, field: str) -> Any:
    value = run.about.get(field)
    if value is None:
        raise UcflError(
            f"{run.folder} was written by an earlier version, which did not store its "
            f"{field}; train it again to take its models."
        )
    return value


def _processes(run: Run) -> int:
    return int(run.about.get("processes", 1))


def _state(run: Run, rank: int) -> State:
    """The state of one of the processes, after the round that the first has stored."""
    if rank == 0:
        return run.checkpoint.state
    file = run.folder / checkpoint_name(rank, _processes(run))
    for place in (file, before(file)):
        if place.exists() and (point := Checkpoint.read(place, CPU)).round == run.checkpoint.round:
            return point.state
    raise UcflError(
        f"{file} is not of round {run.checkpoint.round}, as {checkpoint_name()} is; go on with the "
        "run's own command and --resume."
    )


def save(run: Run, folder: Path, given: GivenModel | None = None, *, fresh: bool = False) -> Path:
    """One safetensors file for each user, and the index, in a folder; the index comes last."""
    run.load_algorithm()  # before anything is made
    if distributed.is_first():
        old = _replaceable(folder, fresh=fresh)
        for place in run.dropped:
            _warn_of_dropped(run, place)
        names = file_names(run.names)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as scratch:
                _write(run, Path(scratch), names, given)
                for name in (*names, INDEX):  # all of them are whole
                    (Path(scratch) / name).replace(folder / name)
            for name in old - set(names):
                (folder / name).unlink(missing_ok=True)
        except (OSError, SafetensorError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
            raise NotWritten(
                f"{folder} cannot take the models ({reason}); free some space there, or give "
                "another folder."
            ) from error
    distributed.barrier()
    return folder


def _write(run: Run, folder: Path, names: Sequence[str], given: GivenModel | None) -> None:
    for user, name, module in zip(
        run.names, names, _models(run, range(run.users), given), strict=True
    ):
        # Copies: safetensors refuses tensors that share memory, as tied parameters do.
        tensors = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        save_file(tensors, folder / name, {"user": user, "run": run.folder.name})
    index = {
        "run": str(run.folder),
        "scenario": run.scenario.name,
        "algorithm": run.algorithm.label,
        "seed": run.seed,
        "round": run.checkpoint.round,
        "model": run.scenario.model,
        "inputs": {"shape": _stored(run, "input_shape"), "type": _stored(run, "input_type")},
        "outputs": _stored(run, "outputs"),
        "class_names": run.about["users"].get("class_names"),
        "load": [
            "import ucfl",
            "from safetensors.torch import load_file",
            *_loading(run, given),
            f"model.load_state_dict(load_file({names[0]!r}))  # any user's file",
        ],
        "without ucfl": "names of tensors begin with 'model.': what follows is the name in the "
        "module that was trained (of mixtures: in one of its components or experts). Inputs of "
        "type uint8 are divided by 255 first; put the module into evaluation mode.",
        "files": dict(zip(run.names, names, strict=True)),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _loading(run: Run, given: GivenModel | None) -> list[str]:
    """Code that makes the model of the first user; a person's own may have to be given again."""
    known, again, remark = run.architecture, "", []
    own = given if given is not None or known is None else known.template
    if isinstance(own, str):
        again = f", model={own!r}"
    elif own is not None and not _is_named(run.scenario.model_name):
        again, kind = ", model=mine", type(own).__name__
        remark = [
            f"# mine: your own model ({kind}), made as for the run; its weights do not matter"
        ]
    return [*remark, f"model = ucfl.Run.open({str(run.folder)!r}).model({run.names[0]!r}{again})"]


def _is_named(model: str) -> bool:
    """Whether the name of a run's model is enough to make it."""
    return not model.startswith(OWN_MODEL) and (model in MODELS or ":" in model)


def _replaceable(folder: Path, *, fresh: bool) -> set[str]:
    """The files of models that may be replaced in a folder; an error where others would be."""
    if not folder.exists():
        return set()
    if not folder.is_dir():
        raise UcflError(f"{folder} is a file; give a folder for the models.")
    there = {place.name for place in folder.iterdir()}
    if not there:
        return set()
    if INDEX not in there:
        runs = sorted(place.parent.name for place in folder.glob(f"*/{INDEX}"))
        what = "models of several runs, in a folder for each" if runs else "no models"
        few = ", ".join(runs or sorted(there)[:3])
        raise UcflError(
            f"{folder} holds {what} ({few[:120]}); give a folder of its own for the models of "
            f"this run, as {folder / 'of-one-run'}."
        )
    if not fresh:
        raise UcflError(
            f"{folder} holds models already; replace them with fresh=True (--fresh), or give "
            "another folder."
        )
    try:
        files = json.loads((folder / INDEX).read_text("utf-8"))["files"].values()
        return {name for name in files if name in there and Path(name).suffix == SUFFIX}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise unreadable(folder / INDEX, error, "give another folder.") from error


def file_names(users: Sequence[str]) -> list[str]:
    """A file's name for each user, after the user's: safe on every system, and no two alike."""
    found: list[str] = []
    taken: set[str] = set()
    for place, user in enumerate(users):
        stem = re.sub(r"[^\w.-]+", "-", user)[:60].strip(".-") or "user"
        while stem.casefold() in taken:
            stem = f"{stem}-{place}"
        taken.add(stem.casefold())
        found.append(stem + SUFFIX)
    return found


def _warn_of_dropped(run: Run, place: int) -> None:
    warnings.warn(
        f"the training of {run.names[place]} diverged in round {run.dropped[place]}: its model is "
        "not evaluated since; look at it before you use it.",
        UcflWarning,
        stacklevel=4,
    )
