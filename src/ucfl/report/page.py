"""The interactive page: one HTML file that asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources

from ucfl.plain import plain
from ucfl.report.answer import Story

#: The page's script, in the order in which its parts build on each other; they share one scope.
SCRIPTS = (
    "elements.js",
    "state.js",
    "chart.js",
    "comparison.js",
    "radio.js",
    "collaboration.js",
    "users.js",
    "page.js",
)


def page(story: Story) -> str:
    """The story as one HTML file.

    Nothing from a run becomes markup: the data is JSON inside a script that is not run, with every
    ``<`` escaped, and the page's own script shows it as text. The policy allows that script and
    style by their hashes, and no request to anywhere.
    """
    template, style = _template("page.html"), _template("page.css")
    script = f'"use strict";\n(() => {{\n{"".join(map(_template, SCRIPTS))}}})();\n'
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"{story['scenario']['name']} · ucfl report"),
        "style": style,
        "script": script,
        "story": _harmless_json(story),
    }
    before, *rest = template.split("{{")
    pieces = [before]
    for piece in rest:
        name, _, after = piece.partition("}}")
        pieces += [parts[name], after]
    return "".join(pieces)


def _harmless_json(story: Story) -> str:
    text = json.dumps(plain(story), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _template(name: str) -> str:
    return (resources.files("ucfl.report") / "template" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
