"""The code blocks of the pages: what they are, and how a reader would run them.

Blocks of Python and of shell run in the order in which a page has them, in one empty folder and
one scope. A comment before a block says otherwise::

    <!-- not run: it takes a GPU and a day -->      its commands' options are checked
    <!-- long -->                                   run by `make test-long`, for it takes minutes
    <!-- file: mymethod.py -->                      put into a file of that name, as the page says

Blocks without a language are outputs, or lists of commands whose options are checked.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import click
import typer.main

from ucfl.cli import app

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>not run: [^>]+|long|file: \S+) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
PYTHON, SHELL = ("python", "py"), ("sh", "bash", "shell", "console")


@dataclass(frozen=True)
class Block:
    """One block: its language, its code, and what the page says of running it."""

    page: str
    line: int
    language: str
    code: str
    mark: str

    @property
    def runs(self) -> bool:
        here = self.language in (*PYTHON, *SHELL) or self.mark.startswith("file: ")
        return here and not self.mark.startswith("not run")

    @property
    def commands(self) -> list[list[str]]:
        """The commands of ucfl that it has, without the program's name."""
        joined = self.code.replace("\\\n", " ")
        lines = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
        found = [shlex.split(line, comments=True) for line in lines if line.startswith("ucfl ")]
        return [words[1:] for words in found]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    name = str(page.relative_to(ROOT))
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        indent = match["indent"]
        code = re.sub(rf"^{indent}", "", match["code"], flags=re.MULTILINE)
        found.append(Block(name, line, match["language"], code, match["mark"] or ""))
    return found


def check_options(words: list[str]) -> None:
    """Raise click's error unless the command exists and takes these arguments and options."""
    command: click.Command = typer.main.get_command(app)
    if words[0].startswith("-"):  # only by name: options such as --install-completion act at once
        known = {option for one in command.params for option in one.opts}
        if words[0] not in known | {"--help"}:
            raise click.UsageError(f"no option {words[0]!r}")
        return
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            raise click.UsageError(f"no command {words[0]!r}")
        command, words = command.commands[words[0]], words[1:]
    if "--help" not in words:
        command.make_context(command.name, [*words])


def run_shell(block: Block, folder: Path) -> None:
    """A block of commands; those of ucfl in this process, which has imported PyTorch already."""
    lines = [line for line in block.code.replace("\\\n", " ").splitlines() if line.strip()]
    ours = all(line.startswith(("ucfl ", "#")) and not re.search("[|>&;$]", line) for line in lines)
    if ours:
        for words in block.commands:
            sys.argv = ["ucfl", *words]
            app(words, standalone_mode=False)
        return
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")},
        check=True,
        timeout=600,
    )


def run_blocks(found: list[Block], folder: Path) -> dict[str, object]:
    """Run a page's blocks in a folder, which is the current one; the names that they leave."""
    module = types.ModuleType("page")  # a real one: dataclasses look for the module of a class
    sys.modules["page"] = module
    for block in found:
        if not block.runs:
            continue
        if block.mark.startswith("file: "):
            (folder / block.mark.removeprefix("file: ")).write_text(block.code)
        elif block.language in SHELL:
            run_shell(block, folder)
        else:
            padding = "\n" * block.line  # so that a traceback has the page's line
            exec(compile(padding + block.code, block.page, "exec"), module.__dict__)
    del sys.modules["page"]
    return module.__dict__
