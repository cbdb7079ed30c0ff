"""``ucfl`` in a process of its own, without the seconds that its imports take.

A server process imports once and forks for every command: what a person's process does, from the
arguments to the exit code, with standard output and standard error of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: What commands import sooner or later; nothing of it starts a thread.
IMPORTED = ["ucfl.cli", "ucfl.runs", "ucfl.report", "pandas", "sklearn.cluster", "pyarrow.parquet"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(IMPORTED)


def ucfl_command(*arguments):
    """For a process that is started, killed or sent signals by the test itself."""
    return [sys.executable, "-m", "ucfl", *map(str, arguments)]


def run_ucfl(*arguments, cwd=None, check=False, **environment):
    """What ``subprocess.run`` gives for ``ucfl`` with these arguments, as text."""
    words = ["ucfl", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        given = {**os.environ, **environment}
        process = _context.Process(target=_command, args=(words, str(cwd or "."), given, out, err))
        process.start()
        process.join()
        done = subprocess.CompletedProcess(
            words, process.exitcode, out.read_text(), err.read_text()
        )
    if check:
        done.check_returncode()
    return done


def _command(words, cwd, environment, out, err):
    for number, file in ((1, out), (2, err)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = os.fdopen(number, "w", encoding="utf-8", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    sys.path.insert(0, cwd)  # as with ``python -m``

    from ucfl.cli import main

    main()
