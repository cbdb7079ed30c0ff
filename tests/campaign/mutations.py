"""Damage, by a seeded generator: bits, cuts, blocks, values; and headers that claim too much."""

import copy
import json
import random

#: Values that a stored JSON file should not hold where it holds something else.
HOSTILE = (
    None, True, -1, 0, 1, 10**30, 1e308, float("nan"), float("inf"), -0.5, "", "x", "\x00",
    "🐌" * 50, [], {}, [[]], [None], {"": None}, [1, "a"], "../../etc/passwd",
)  # fmt: skip
#: Numbers that break arithmetic, as little-endian bytes.
NUMBERS = (0, 1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def flipped_or_cut(whole: bytes, rng: random.Random) -> bytes:
    """One bit flipped, or the end cut off."""
    if rng.random() < 0.1:
        return whole[: rng.randrange(len(whole))]
    place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
    return whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]


def mutated(whole: bytes, rng: random.Random) -> bytes:
    """One to three changes of any kind."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        whole = rng.choice(CHANGES)(whole, rng) or b"\x00"
    return whole


def _place(whole, rng):
    """Often near either end, where headers are."""
    size = len(whole)
    span = rng.choice((size, size, min(size, 64), min(size, 512)))
    start = rng.choice((0, 0, size - span))
    return start + rng.randrange(max(span, 1))


def _overwritten(whole, rng):
    place, length = _place(whole, rng), rng.randrange(1, 32)
    return whole[:place] + rng.randbytes(length) + whole[place + length :]


def _number(whole, rng):
    place, size = _place(whole, rng), rng.choice((1, 2, 4, 8))
    value = rng.choice(NUMBERS) % (1 << 8 * size)
    raw = value.to_bytes(size, rng.choice(("little", "big")))
    return whole[:place] + raw + whole[place + size :]


def _digit(whole, rng):
    """Another digit, or many, where text has one."""
    places = [i for i, byte in enumerate(whole[:20_000]) if chr(byte).isdigit()]
    if not places:
        return _overwritten(whole, rng)
    place = rng.choice(places)
    digits = rng.choice((b"0", b"9", b"-1", b"1e999", b"9" * 18, b"9" * 5000, b"1.5", b"NaN"))
    return whole[:place] + digits + whole[place + 1 :]


def _removed(whole, rng):
    place = _place(whole, rng)
    return whole[:place] + whole[place + rng.randrange(1, 200) :]


def _repeated(whole, rng):
    place, length = _place(whole, rng), rng.randrange(1, 200)
    return whole[:place] + whole[place : place + length] * rng.choice((2, 3, 50)) + whole[place:]


def _nested(whole, rng):
    place = _place(whole, rng)
    return whole[:place] + rng.choice((b"[", b'{"a":', b"(", b"-")) * 30_000 + whole[place:]


def _swapped(whole, rng):
    a, b = sorted((_place(whole, rng), _place(whole, rng)))
    return whole[b:] + whole[a:b] + whole[:a]


CHANGES = (
    flipped_or_cut, flipped_or_cut, flipped_or_cut, _overwritten, _number, _number, _digit,
    _removed, _repeated, _nested, _swapped,
)  # fmt: skip


def mutated_json(whole: bytes, rng: random.Random) -> bytes:
    """A value of the tree replaced, removed or added; the text stays JSON."""
    tree = json.loads(whole)
    for _ in range(rng.choice((1, 1, 2))):
        tree = _in_tree(tree, rng)
    return json.dumps(tree).encode()


def _in_tree(tree, rng):
    nodes = [tree]
    while (
        isinstance(nodes[-1], dict | list) and nodes[-1] and (len(nodes) == 1 or rng.random() < 0.7)
    ):
        node = nodes[-1]
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        kind, before = rng.random(), node[key]
        if kind < 0.45:
            node[key] = copy.deepcopy(rng.choice(HOSTILE))
        elif kind < 0.6:
            del node[key]
            break
        elif kind < 0.65:
            node[key] = [before]
        elif kind < 0.7 and isinstance(node, dict):
            node["a key of a later version"] = copy.deepcopy(before)
        nodes.append(before)
    return tree
