"""What goes wrong through no fault of the program: one sentence that says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path


class UcflError(Exception):
    """A mistake that the person can mend: the message is one clear sentence, the exit code 2."""


class UcflWarning(UserWarning):
    """Something was adjusted, or is likely not what the person wants; the work goes on."""


class Diverged(UcflError):  # noqa: N818 (the literature's word)
    """Models of some users are no longer finite; ``users`` are their places among all users."""

    def __init__(self, users: Sequence[int], names: Sequence[str], t: int) -> None:
        self.users, self.round = tuple(users), t
        few = ", ".join(names[user] for user in users[:3])
        few += f" and {len(users) - 3} more" if len(users) > 3 else ""
        where = f"in round {t}" if t else "before the first round"
        super().__init__(
            f"training diverged {where}: NaN or infinite values in the model of user {few}; lower "
            "the learning rate, or check these users' data."
        )


#: Names that a sentence can list.
MOST_LISTED = 12


def unknown(kind: str, name: str, known: Collection[str], hint: str = "") -> UcflError:
    """The error for a name that nothing bears: it says the nearest one, and what there is.

    A long list is left out where a name is near.
    """
    name = name if len(name) <= 80 else f"{name[:80]}…"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    listed = ", ".join(sorted(known))
    if not near:
        advice = f"choose one of: {listed}."
    elif len(known) > MOST_LISTED:
        advice = f"did you mean {near[0]!r}?"
    else:
        advice = f"did you mean {near[0]!r}, or another of {listed}?"
    return UcflError(f"unknown {kind} {name!r}; {advice}{' ' + hint if hint else ''}")


def check_name(kind: str, name: str, known: Collection[str], hint: str = "") -> None:
    """Raise unless ``name`` is one of ``known``."""
    if name not in known:
        raise unknown(kind, name, known, hint)


def not_installed(what: str, extra: str) -> UcflError:
    """The error where ``what`` needs a package of an extra that is not there."""
    return UcflError(
        f"{what}, which is not installed here; install the extra {extra}, as docs/install.md says: "
        f"pip install 'ucfl[{extra}]', or in a clone pip install -e '.[{extra}]'."
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for brackets; it may quote a damaged file."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(sign if sign.isprintable() else "?" for sign in lines[0][:200]).rstrip(".")


def unreadable(file: Path, error: Exception, advice: str) -> UcflError:
    """The error for a file that is not what it must be, or not the person's to read."""
    if isinstance(error, PermissionError):
        return UcflError(
            f"{file} cannot be read (permission denied); ask its owner, or work in another folder."
        )
    if isinstance(error, OSError) and error.strerror:
        return UcflError(f"{file} cannot be read ({error.strerror}); {advice}")
    return UcflError(f"{file} is damaged ({first_line(error)}); {advice}")
