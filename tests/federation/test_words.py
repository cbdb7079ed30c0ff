"""``federation`` says what is computed: how, and on what, is ``execution``'s business."""

import re
from pathlib import Path

import ucfl

HOW = re.compile(r"cuda|graph|chunk|thread|triton|kernel|vmap|compil", re.IGNORECASE)


def test_federation_mentions_nothing_of_how_it_is_computed():
    folder = Path(ucfl.__file__).parent / "federation"
    found = [
        f"{file.name}:{number}: {line.strip()}"
        for file in sorted(folder.glob("*.py"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if HOW.search(line)
    ]
    assert found == []
