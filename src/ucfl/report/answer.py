"""A story in words: which method serves best, how well, and at what cost."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from ucfl.measure import Measure
from ucfl.runs import Curve
from ucfl.runs.paired import ERROR_RATE
from ucfl.wireless import SYSTEMS, Traffic, WirelessSystem
from ucfl.words import counted

Story = dict[str, Any]

#: Methods that know what nobody knows in practice.
TOLD_THE_GROUPS = ("oracle",)
#: Methods that one sentence names.
MOST_NAMED = 5
#: A user with fewer test examples is marked: one of them is worth more than a point of accuracy.
FEW = 100
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
    """The answer in words: which method, how good, for how many streams, at what cost.

    A method is called the best only if a paired test tells it from every other one.
    """
    best, measure = method_of(story, story["chosen"]), measure_of(story)
    rivals = [m for m in story["methods"] if m is not best and not _is_told(m)]
    same = [m for m in rivals if m["label"] in story["tied"]]
    told = _undecided(story, best, same) if same else _headline(story, best, rivals)
    told[1:1] = [story["unequal"]] if story["unequal"] else []
    others = [
        f"{method['label']} reaches {_text(method, measure)} and "
        f"{_worst(method, measure)} for its worst user"
        for method in rivals
        if method["label"] in SHARED_OR_ALONE and method not in same
    ]
    if others:
        told.append(f"{'; '.join(others)}.")
    if rivals:
        told += _costs(story, best)
    told += [
        f"{method['label']}, which is told the true groups, reaches {_text(method, measure)}."
        for method in story["methods"]
        if _is_told(method)
    ]
    return told


def _headline(story: Story, best: dict[str, Any], rivals: list[dict[str, Any]]) -> list[str]:
    """The best method by a test, or the only one."""
    measure = measure_of(story)
    told = [
        f"{best['label']} {'serves' if rivals else 'gives'} the {story['users']} users"
        f"{' best:' if rivals else ''} {_text(best, measure)} mean {measure.words} and "
        f"{_worst(best, measure)} for the worst one{_few(best)}, with {_streams(best)} "
        f"({counted(best['rounds'], 'round')}, {_seeds(best)})."
    ]
    if rivals:
        pairs = [story["compared"][method["label"]] for method in rivals]
        told.append(
            f"It is better than {'each of the others' if len(rivals) > 1 else rivals[0]['label']} "
            f"by a paired test over {_over(pairs)} (error rate {ERROR_RATE:.0%} for each pair)."
        )
    return told


def _undecided(story: Story, best: dict[str, Any], same: list[dict[str, Any]]) -> list[str]:
    """Methods that no test tells from the one with the highest mean, and the cheapest of them."""
    measure, tied = measure_of(story), [best, *same]
    named = [f"{method['label']} ({_text(method, measure)})" for method in tied]
    if len(named) > MOST_NAMED:
        named = [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    pairs = [story["compared"][method["label"]] for method in same]
    cheapest = min(tied, key=lambda method: method["streams"])
    return [
        f"No difference is shown in mean {measure.words} between {', '.join(named[:-1])} and "
        f"{named[-1]}: a paired test over {_over(pairs)} does not tell them apart (error rate "
        f"{ERROR_RATE:.0%} for each pair; {counted(best['rounds'], 'round')}, {_seeds(best)}).",
        f"Of these, {cheapest['label']} sends the least down, {_streams(cheapest)}; its worst user "
        f"has {_worst(cheapest, measure)}{_few(cheapest)}.",
    ]


def _costs(story: Story, best: dict[str, Any]) -> list[str]:
    """When the best method reaches the target, on each of the paper's systems, and who is first."""
    target = story["target"]
    if best["label"] == target["of"] or math.isnan(target["value"]):
        return []
    if not story["compared"][target["of"]]["shown"]:
        return []  # sooner at a target that is no lower would be no finding
    words = []
    for name in SYSTEMS:
        times = story["race"][name]
        mine, first = times[best["label"]], min(times, key=lambda label: times[label])
        if math.isfinite(mine) and mine > 0:  # an untrained model may be as good
            sooner = mine <= times[first]
            place = "the first" if sooner else f"{first} is first, after {times[first]:.0f}"
            words.append(f"{mine:.0f} T_dl on {name} ({place})")
    if not words:
        return []
    goal = f"{target['of']}'s final {measure_of(story).words}"
    return [f"{best['label']} has {goal} after {', '.join(words)}."]


def tied(story: Story) -> list[str]:
    """The methods that no test tells from the chosen one, but for those told the groups."""
    return [
        method["label"]
        for method in story["methods"]
        if method["label"] != story["chosen"]
        and not _is_told(method)
        and not story["compared"][method["label"]]["shown"]
    ]


def race(story: Story) -> dict[str, dict[str, float]]:
    """The time in which each method has the target, on each of the paper's systems."""
    return {
        name: {
            method["label"]: method_curve(method, story, system).time_to(story["target"]["value"])
            for method in story["methods"]
        }
        for name, system in SYSTEMS.items()
    }


def lower_than_final(story: Story) -> list[str]:
    """Why a value that is called best is worse than the final one, where that happens."""
    measure = measure_of(story)
    here = [
        method["label"]
        for method in story["methods"]
        if measure.goodness(method["best"]["mean"]) < measure.goodness(method["final"]["mean"])
    ]
    return [why_lower(here)] if here else []


def why_lower(labels: list[str]) -> str:
    """That validation data choose the round, and test data are reported."""
    return (
        f"Best is worse than final for {', '.join(labels)}: validation data choose the round of "
        "best, so that its test value is not picked by hand, and they may choose an earlier one."
    )


def _is_told(method: dict[str, Any]) -> bool:
    return method["label"].partition(":")[0] in TOLD_THE_GROUPS


def _over(pairs: list[dict[str, Any]]) -> str:
    """What the pairs were compared over: 5 seeds, 20 users."""
    return " or ".join(dict.fromkeys(f"{pair['count']} {pair['over']}" for pair in pairs))


def _seeds(method: dict[str, Any]) -> str:
    count = len(method["seeds"])
    return counted(count, "seed")


def _worst(method: dict[str, Any], measure: Measure) -> str:
    return f"{measure.text(method['final']['worst'])}{measure.sign}"


def _few(method: dict[str, Any]) -> str:
    """A worst user with few test examples may be an unlucky one: how many there are."""
    found = method["worst_examples"]
    if found is None or found[0] >= FEW:
        return ""
    fewest, most = found
    count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f" (of only {count} test example{'s' * (most > 1)})"


def _text(method: dict[str, Any], measure: Measure) -> str:
    final, several = method["final"], len(method["seeds"]) > 1
    found = measure.text(final["mean"], final["deviation"] if several else None)
    return found.replace(" ", "\u00a0") + measure.sign


def _streams(method: dict[str, Any]) -> str:
    """What the last round sent: a round like any other, unless traffic changes as it goes."""
    count = method["streams"]
    words = f"{count:.4g} broadcast{'s' * (count != 1)}" if count else "no broadcast"
    return f"{words} {'a round' if len(method['traffic']) == 1 else 'in the last round'}"
