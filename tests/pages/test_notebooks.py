"""The notebooks run from their first cell to their last, in an empty folder."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra ucfl[docs]")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    book = nbformat.read(file, 4)
    nbclient.NotebookClient(book, timeout=600).execute(cwd=tmp_path)  # raises where a cell does
    assert [cell.execution_count for cell in book.cells if cell.cell_type == "code"]


def test_stored_notebooks_have_outputs_and_no_path_of_a_machine():
    assert len(NOTEBOOKS) >= 3
    for file in NOTEBOOKS:
        text = file.read_text()
        assert len(text) < 100_000, file.name
        assert '"outputs": [\n    {' in text or '"outputs": [\n   {' in text, file.name
        for place in ("/home/", "/tmp/", f"{ROOT.parent}/", "site-packages"):
            assert place not in text, (file.name, place)
