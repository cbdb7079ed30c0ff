"""A story in words: which method serves best, how well, and at what cost."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from ucfl.measure import Measure
from ucfl.runs import Curve
from ucfl.wireless import SYSTEMS, Traffic, WirelessSystem

Story = dict[str, Any]

#: Methods that know what nobody knows in practice.
TOLD_THE_GROUPS = ("oracle",)
#: What personalisation must beat: one model for all, or a model of one's own.
SHARED_OR_ALONE = ("fedavg", "local")


def method_of(story: Story, label: str) -> dict[str, Any]:
    """One method of a story."""
    found: dict[str, Any] = next(m for m in story["methods"] if m["label"] == label)
    return found


def method_curve(method: dict[str, Any], story: Story, system: WirelessSystem) -> Curve:
    """The metric against time of a method: what :func:`ucfl.runs.curve` gives for its runs.

    Times are linear in traffic, so those of the seeds' mean traffic are the mean of their times. On
    the system that a deadline is for, a round with late users lasts as long as that.
    """
    users, participants = story["users"], story["participants"]
    rows = np.array([row[1:] for row in method["traffic"] for _ in range(row[0])]).reshape(-1, 3)
    present = np.broadcast_to(np.arange(users) < participants, (len(rows), users))
    times = system.elapsed(Traffic(*method["start"]), rows, users, present=present)
    limit = method["deadline"]
    if limit is not None and limit["system"] == asdict(system):
        late, steps = np.array(limit["late"]), np.diff(times).clip(max=limit["time"])
        waited = late * limit["time"] + (1 - late) * steps
        times = np.cumsum([times[0], *waited])
    mean, worst = np.array(method["mean"]), np.array(method["worst"])
    return Curve(times, mean, worst, system.unit, measure_of(story))


def measure_of(story: Story) -> Measure:
    """What a story's methods are judged by."""
    return Measure(**{word: story["measure"][word] for word in Measure.__dataclass_fields__})


def answer(story: Story) -> list[str]:
    """The answer in words: which method, how good, for how many streams, at what cost."""
    best = method_of(story, story["chosen"])
    seeds, measure = len(best["seeds"]), measure_of(story)
    alone = len(story["methods"]) == 1
    told = [
        f"{best['label']} {'gives' if alone else 'serves'} the {story['users']} users"
        f"{'' if alone else ' best:'} {_text(best['final'], measure)} mean {measure.words} and "
        f"{measure.text(best['final']['worst'])}{measure.sign} for the worst one, with "
        f"{_streams(best)} "
        f"({best['rounds']} rounds, {seeds} seed{'s' * (seeds > 1)})."
    ]
    told += [story["unequal"]] if story["unequal"] else []
    if alone:
        return told
    told += _rivals(story, best)
    others = [
        f"{method['label']} reaches {_text(method['final'], measure)} and "
        f"{measure.text(method['final']['worst'])}{measure.sign} for its worst user"
        for method in story["methods"]
        if method["label"] in SHARED_OR_ALONE and method is not best
    ]
    if others:
        told.append(f"{'; '.join(others)}.")
    told += _costs(story, best)
    told += [
        f"{method['label']}, which is told the true groups, reaches "
        f"{_text(method['final'], measure)}."
        for method in story["methods"]
        if method["label"] in TOLD_THE_GROUPS
    ]
    return told


def _rivals(story: Story, best: dict[str, Any]) -> list[str]:
    """Methods that the seeds do not tell from the best one."""
    measure = measure_of(story)
    lowest = measure.goodness(best["final"]["mean"]) - best["final"]["deviation"]
    near = [
        f"{method['label']} ({_text(method['final'], measure)})"
        for method in story["methods"]
        if method is not best
        and method["label"] not in TOLD_THE_GROUPS
        and measure.goodness(method["final"]["mean"]) >= lowest
    ]
    return [f"Within one deviation of it: {', '.join(near)}."] if near else []


def _costs(story: Story, best: dict[str, Any]) -> list[str]:
    """When the best method reaches the target, on each of the paper's systems."""
    target = story["target"]
    if best["label"] == target["of"] or math.isnan(target["value"]):
        return []
    words = []
    for name, system in SYSTEMS.items():
        pair = (best, method_of(story, target["of"]))
        mine, theirs = (
            method_curve(method, story, system).time_to(target["value"]) for method in pair
        )
        if math.isfinite(mine) and theirs > 0:
            words.append(f"{mine:.0f} T_dl on {name} (instead of {theirs:.0f})")
    if not words:
        return []
    goal = f"{target['of']}'s final {measure_of(story).words}"
    return [f"{best['label']} has {goal} after {', '.join(words)}."]


def _text(summary: dict[str, float], measure: Measure) -> str:
    found = measure.text(summary["mean"], summary["deviation"])
    return found.replace(" ", "\u00a0") + measure.sign


def _streams(method: dict[str, Any]) -> str:
    """What the last round sent: a round like any other, unless traffic changes as it goes."""
    count = method["streams"]
    words = f"{count:.4g} broadcast{'s' * (count != 1)}" if count else "no broadcast"
    return f"{words} {'a round' if len(method['traffic']) == 1 else 'in the last round'}"
