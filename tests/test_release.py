"""What is released works: the wheel, in a clean environment, outside the clone."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import ucfl

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
ENOUGH = 1800


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == ucfl.__version__
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == ucfl.__version__
    assert f"version: {ucfl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"ucfl-{ucfl.__version__}-py3" in (ROOT / "docs" / "install.md").read_text()
    assert f"{{{ucfl.__version__}}}" in (ROOT / "docs" / "citing.md").read_text()


def test_the_paper_is_cited_with_its_authors():
    cited = (ROOT / "CITATION.cff").read_text()
    for name in ("Mestoukirdi", "Zecchin", "Gesbert", "Li"):
        assert f"family-names: {name}\n" in cited
        assert name in (ROOT / "docs" / "citing.md").read_text()
    page = (ROOT / "docs" / "citing.md").read_text()
    for words in (r"authors:\n  - name: (.*)", r"(arXiv:\d+\.\d+)"):  # of the software, the paper
        assert re.search(words, cited)[1] in page


def run(command, folder, **more):
    """A command as a stranger gives it: nothing of the clone is on the path."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        timeout=ENOUGH,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The two files, the wheel built from the other one."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT], folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def installed(released, tmp_path_factory):
    """The wheel and its extras in an environment that has nothing else."""
    home = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(home, with_pip=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet"]
    wanted = f"ucfl[tensorboard,docs] @ {released[0].as_uri()}"
    run([*pip, "-c", ROOT / "constraints.txt", wanted], home)
    return home / "bin"


@pytest.mark.long
def test_the_files_hold_what_is_needed(released):
    wheel, source = released
    inside = zipfile.ZipFile(wheel).namelist()
    assert {"ucfl/py.typed", "ucfl/report/template/page.html"} <= set(inside)
    assert not any(name.startswith(("tests/", "docs/")) for name in inside)
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE", "src/ucfl/__init__.py"} <= set(names)


@pytest.mark.long
def test_the_command_runs_from_the_wheel(installed, tmp_path):
    place = run([installed / "python", "-c", "import ucfl; print(ucfl.__file__)"], tmp_path)
    assert Path(place.strip()).is_relative_to(installed.parent)
    command = installed / "ucfl"
    assert run([command, "--version"], tmp_path) == f"ucfl {ucfl.__version__}\n"
    assert "rotated-mnist" in run([command, "scenarios"], tmp_path)
    shown = run([command, "--show-completion"], tmp_path, SHELL="/bin/bash")
    assert "_UCFL_COMPLETE" in shown or "complete" in shown
    methods = "fedavg,local,user-centric:streams=auto"
    compared = run(
        [command, "compare", "--algorithms", methods, "--rounds", "2", "--json"], tmp_path
    )
    assert set(json.loads(compared)["algorithms"]) == set(methods.split(","))
    run([command, "report", "runs"], tmp_path)
    assert "<!doctype html>" in (tmp_path / "runs" / "report.html").read_text().lower()
    run([command, "figure", "weights", "runs", "--out", "weights.pdf"], tmp_path)
    run([command, "plan", "runs"], tmp_path)
    run([command, "export", "tensorboard", "runs"], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_notebooks_run_against_the_wheel(installed, tmp_path, file):
    (tmp_path / file.name).write_bytes(file.read_bytes())
    order = ["nbconvert", "--to", "notebook", "--execute", "--output", "done.ipynb"]
    run([installed / "python", "-m", *order, file.name], tmp_path)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
