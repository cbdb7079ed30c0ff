"""What the site's pages are filled with when it is built: the code says it, nobody copies it.

A page has a comment such as ``<!-- made: commands -->`` where something belongs that is made from
the package itself; the navigation has folders whose pages are listed by what is in them.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import typer.main
from nbconvert import MarkdownExporter

from ucfl.algorithms import REGISTRY
from ucfl.cli import app
from ucfl.users import SCENARIOS, Scenario

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
MARK = re.compile(r"^<!-- made: (\w+)(?: (\S+))? -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """List the pages of folders."""
    config["nav"] = list(_filled(config["nav"]))
    return config


def _filled(entries: list[Any]) -> Iterator[Any]:
    for entry in entries:
        if not isinstance(entry, dict):
            yield entry
            continue
        ((title, place),) = entry.items()
        if isinstance(place, list):
            yield {title: list(_filled(place))}
        elif place.endswith("/"):
            yield {title: pages_of(place)}
        else:
            yield entry


def pages_of(folder: str) -> list[str]:
    """The pages of a folder: its README first, then methods in their order, the rest by name."""
    places = {name: place for place, name in enumerate(REGISTRY)}
    found = sorted(
        (DOCS / folder).glob("*.md"),
        key=lambda page: (
            page.name not in ("README.md", "index.md"),
            places.get(page.stem, len(places)),
            page.name,
        ),
    )
    return [f"{folder}{page.name}" for page in found]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in what is made from the package."""
    return MARK.sub(lambda mark: MAKERS[mark[1]](*filter(None, [mark[2]])), markdown)


def api(package: str) -> str:
    """Every public name of a package: functions first, then classes, then the rest."""
    module = importlib.import_module(package)
    kinds = (inspect.isfunction, inspect.isclass)
    names = sorted(
        module.__all__, key=lambda name: [not kind(getattr(module, name)) for kind in kinds]
    )
    return "\n\n".join(_documented(f"{package}.{name}", getattr(module, name)) for name in names)


def _documented(path: str, value: Any) -> str:
    """A name to document; a function that has a module's name, by the place that defines it.

    For mkdocstrings ``ucfl.runs.compare`` is the module, and so is ``ucfl.compare``.
    """
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        return f"::: {path}"
    defined, name = value.__module__, path.rpartition(".")[2]
    imported_from = f"{'.'.join(defined.split('.')[:2])}.{name}"
    if not (_is_module(path) or _is_module(imported_from)):
        return f"::: {path}"
    return f"[](){{ #{path} }}\n\n::: {defined}.{value.__qualname__}"


def _is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:  # of the part before the last dot
        return False


def commands() -> str:
    """Every command with its arguments and options, as ``--help`` has them."""
    root = typer.main.get_command(app)
    assert isinstance(root, click.Group)
    return "\n\n".join(_command(command, f"ucfl {name}") for name, command in _every(root))


def _every(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{before}{name}", command
        if isinstance(command, click.Group):
            yield from _every(command, f"{before}{name} ")


def _command(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name)
    lines = [f"## {name}", "", textwrap.dedent(command.help or "").strip(), ""]
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines += ["```text", usage, "```", "", "| option | what it does |", "|---|---|"]
    for one in command.params:
        said = one.get_help_record(context)
        if said is None and isinstance(one, click.Argument):
            said = one.make_metavar(context), getattr(one, "help", "") or ""
        if said is not None and not getattr(one, "hidden", False):
            lines.append(f"| `{_cell(said[0])}` | {_cell(said[1])} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text inside a table's cell."""
    plain = re.sub(r"\[/?[a-z ]+\]", "", text) if "[/" in text else text
    return " ".join(plain.split()).replace("|", "\\|")


def fields() -> str:
    """Every field of a scenario."""
    lines = ["| field | default | what it is |", "|---|---|---|"]
    for name, field in Scenario.model_fields.items():
        default = json.dumps(field.get_default(call_default_factory=True))
        lines.append(f"| `{name}` | `{_cell(default)}` | {_cell(field.description or '')} |")
    return "\n".join(lines)


def methods() -> str:
    """Every method with its cost, its tested model, and when to use it, from its own page."""
    lines = ["| method | what it sends in a round | tested model | when to use it |"]
    lines.append("|---|---|---|---|")
    for name, kind in REGISTRY.items():
        when = _part((DOCS / "algorithms" / f"{name}.md").read_text(), "When to use it")
        link = f"[`{name}`](../algorithms/{name}.md)"
        tested = kind().tested_model
        lines.append(f"| {link} | {_cell(kind.cost)} | {tested} | {_cell(when)} |")
    return "\n".join(lines)


def _part(page: str, name: str) -> str:
    """A paragraph of a method's page, without links that are relative to it."""
    found = re.search(rf"\*\*{name}\.\*\* (.*?)(?:\n\n|\Z)", page, re.DOTALL)
    assert found is not None, name
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", found[1])


def scenarios() -> str:
    """The named scenarios."""
    lines = [
        "| scenario | users | groups | model | rounds | what it is |",
        "|---|---|---|---|---|---|",
    ]
    for one in SCENARIOS.values():
        users = "people" if one.split == "natural" else str(one.users)
        cells = [f"`{one.name}`", users, str(one.groups), one.model_name, str(one.rounds)]
        lines.append(f"| {' | '.join(cells)} | {_cell(one.description)} |")
    return "\n".join(lines)


def file(name: str) -> str:
    """A page of the project's root; links into docs/ are relative to it here."""
    text = (ROOT / name).read_text()
    return re.sub(r"\]\(docs/", "](", text)


def notebook(name: str) -> str:
    """A notebook with its stored outputs; pictures are inside the page."""
    text, resources = MarkdownExporter().from_filename(str(DOCS / "notebooks" / name))
    for key, data in resources["outputs"].items():
        inline = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        text = text.replace(f"]({key})", f"]({inline})")
    return str(text)


MAKERS: dict[str, Callable[..., str]] = {
    "api": api,
    "commands": commands,
    "fields": fields,
    "methods": methods,
    "scenarios": scenarios,
    "file": file,
    "notebook": notebook,
}
