"""The printed values are the paper's, number by number."""

import re

import pytest

from conftest import SHARED
from ucfl import algorithms
from ucfl.paper.printed import (
    CONCEPT_SHIFT,
    COVARIATE_SHIFT,
    LABEL_SHIFT,
    METHODS,
    PROPOSED,
    TABLE_1,
    TABLE_2,
)

NAMES = {
    "Proposed k=m": "user-centric",
    "Proposed k=4": "user-centric:streams=4",
    "SCAFFOLD": "scaffold",
    "Ditto": "ditto",
    "pFedMe": "pfedme",
    "Fedprox": "fedprox:tested=local",
    "Local": "local",
    "FedAvg": "fedavg",
    "Oracle": "oracle",
    "CFL": "cfl",
    "FedFOMO": "fedfomo",
}
COLUMNS = (LABEL_SHIFT, COVARIATE_SHIFT, CONCEPT_SHIFT)


@pytest.fixture
def tables():
    """The bodies of both LaTeX tables as rows of cells, without decoration."""
    file = SHARED / "paper" / "user-centric-federated-learning.tex"
    if not file.exists():
        pytest.skip("the paper's LaTeX is not in ../shared/paper")
    bodies = re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", file.read_text(), re.DOTALL)
    return [[plain(line).split("&") for line in body.split(r"\\")] for body in bodies]


def plain(text):
    text = re.sub(r"\\cite\{[^}]*\}", "", text)
    text = re.sub(r"\\(?:textbf|emph|text)\{([^}]*)\}", r"\1", text)
    text = re.sub(r"\\textcolor\{red\}\{([^}]*)\}", r"\1", text)
    text = re.sub(r"\\(?:midrule|bottomrule|toprule|cmidrule\(lr\)\{[^}]*\})", "", text)
    return text.replace(r"\&", "and").replace("$", "").replace(r"\pm", "±")


def name_of(text):
    words = " ".join(text.split())
    return next((NAMES[name] for name in NAMES if words.startswith(name)), None)


def test_table_1_is_the_latex(tables):
    found = {column: {} for column in COLUMNS}
    for head, *cells in tables[0]:
        name = name_of(head)
        if name and len(cells) == 3:
            for column, cell in zip(COLUMNS, cells, strict=True):
                if numbers := re.findall(r"\d+\.\d+", cell):
                    found[column][name] = tuple(map(float, numbers))
    ours = {c: {n: (v.mean, v.std) for n, v in t.items()} for c, t in TABLE_1.items()}
    assert found == ours


def test_table_2_is_the_latex(tables):
    header = next(row for row in tables[1] if any("FedFOMO" in cell for cell in row))
    names = [name_of(cell) for cell in header[1:-1]]
    rows = [row for row in tables[1] if any(re.search(r"\d\d\.\d", cell) for cell in row)]
    for column, (head, *cells) in zip(COLUMNS, rows, strict=True):
        assert ("CIFAR10" in head) == (column == CONCEPT_SHIFT)
        found = {
            name: float(cell.strip())
            for name, cell in zip(names, cells[:-1], strict=True)
            if cell.strip() != "-"
        }
        value, streams = re.match(r"\s*(\d+\.\d+)\s*\(k=(\d+)\)", cells[-1]).groups()
        assert PROPOSED[column] == ("user-centric:streams=4" if streams == "4" else "user-centric")
        found[PROPOSED[column]] = float(value)
        assert found == {name: printed.mean for name, printed in TABLE_2[column].items()}


def test_there_are_26_and_20_printed_values():
    assert sum(map(len, TABLE_1.values())) == 26
    assert sum(map(len, TABLE_2.values())) == 20
    assert all(value.std for table in TABLE_1.values() for value in table.values())


def test_every_method_is_an_algorithm_under_its_own_label():
    for name in METHODS:
        assert algorithms.find(name).label == name


def test_the_tolerance_is_two_points_or_the_printed_deviation():
    assert TABLE_1[LABEL_SHIFT]["user-centric"].tolerance == 4.2
    assert TABLE_1[CONCEPT_SHIFT]["ditto"].tolerance == 2
    assert TABLE_2[CONCEPT_SHIFT]["ditto"].tolerance == 2
