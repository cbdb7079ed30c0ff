"""What people see in a terminal: tables, and a live line per run."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ucfl.federation import Links
from ucfl.measure import Measure
from ucfl.paper import Page, Survey
from ucfl.paper.page import CLAIM_HEADERS, claims_as_text
from ucfl.paper.reproduce import duration
from ucfl.paper.tables import COMPARED
from ucfl.report.answer import SHARED_OR_ALONE, Story, measure_of, why_lower
from ucfl.runs import Progress
from ucfl.runs.arrivals import WHEN, ByWhen
from ucfl.runs.budget import Cost, Point, Rival, Spending, pareto_front
from ucfl.runs.progress import OnRound
from ucfl.users.acquire import OnBytes
from ucfl.wireless import SYSTEMS, Plan
from ucfl.words import counted, either


def console(**options: Any) -> Console:
    """Text as it is: nothing in the name of a folder, user or method is markup or an emoji."""
    return Console(highlight=False, markup=False, emoji=False, **options)


#: Answers go to standard output, everything else to standard error.
answers = console()
notes = console(stderr=True)


@contextmanager
def rounds_shown() -> Iterator[OnRound]:
    """Show each run as it trains: a live bar on a terminal, a line per tenth elsewhere."""
    if notes.is_terminal:
        yield from _live_bars()
    else:
        yield _plain_lines()


def _live_bars() -> Iterator[OnRound]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("mean {task.fields[mean]}  worst {task.fields[worst]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bars(*columns, console=notes) as bars:
        task: TaskID | None = None
        last = 0
        label = ""

        def show(progress: Progress) -> None:
            nonlocal task, label, last
            if task is None or progress.label != label or progress.round <= last:
                label = progress.label
                task = bars.add_task(label, total=progress.rounds, mean="", worst="")
            last = progress.round
            bars.update(
                task,
                completed=progress.round,
                mean=progress.measure.text(progress.mean),
                worst=progress.measure.text(progress.worst),
            )

        yield show


def _plain_lines() -> OnRound:
    began = time.perf_counter()

    def show(progress: Progress) -> None:
        tenth = math.ceil(progress.rounds / 10)
        if progress.round % tenth == 0 or progress.round == progress.rounds:
            notes.print(
                f"{progress.label}: round {progress.round}/{progress.rounds}, "
                f"mean {progress.measure.text(progress.mean)}, "
                f"worst {progress.measure.text(progress.worst)}, "
                f"{time.perf_counter() - began:.0f} s"
            )

    return show


@contextmanager
def bytes_shown(name: str) -> Iterator[OnBytes]:
    """Show a download as it arrives."""
    if not notes.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=notes) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """A table; numbers to the right. Where the output is no terminal, nothing is cut or wrapped."""
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for i, header in enumerate(headers):
        cells = [row[i] for row in rows]
        numeric = any(cells) and all(c[:1].isdigit() or c in ("", "–") for c in cells)
        table.add_column(header, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*row)
    if answers.is_terminal:
        answers.print(table)
    else:
        console(file=answers.file, width=400).print(table)


#: Newcomers with the model that they get, and after local training.
LATE = ("newcomers", "tuned")


def _newcomers(there: ByWhen | None, measure: Measure) -> list[str]:
    if there is None:
        return ["–"] * len(LATE)
    return [measure.text(there[when]["mean"]) for when in WHEN]


def show_comparison(result: dict[str, Any]) -> None:
    """The table of ``ucfl compare``."""
    seeds, measure = result["seeds"], Measure(**result["metric"])
    late = any(row["newcomers"] for row in result["algorithms"].values())
    rows = []
    for label, row in result["algorithms"].items():
        cells = [label, row["tested_model"]]
        for who in ("mean", "worst"):
            off = row["std"][who] if len(seeds) > 1 else {}
            cells += [measure.text(row[who][w], off.get(w)) for w in ("final", "best")]
        cells += _newcomers(row["newcomers"], measure) if late else []
        traffic = row["traffic"]
        cells += [f"{traffic['down']:.4g} / {traffic['up']:.4g}", f"{row['seconds']:.1f}"]
        rows.append(cells)
    headers = ["algorithm", "tested model", "mean final", "mean best", "worst final"]
    headers += ["worst best", *(LATE if late else ())]
    headers += ["models down / up", "seconds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds, mean ± deviation"
    title = f"{result['scenario']}, {counted(result['rounds'], 'round')}, {which}: "
    title += _title(measure)
    show_table(headers, rows, title)
    answers.print(
        "final: the last round; best: the round that validation data chooses; "
        "worst: the worst user.",
        soft_wrap=True,
    )
    if said := Links.of(result["uplink"], result["downlink"]).words:
        answers.print(f"{said} Models down and up are counted by their bytes.", soft_wrap=True)
    means = {label: row["mean"] for label, row in result["algorithms"].items()}
    lower = [
        label
        for label, mean in means.items()
        if measure.goodness(mean["best"]) < measure.goodness(mean["final"])
    ]
    if lower:
        answers.print(why_lower(lower), soft_wrap=True)
    if late:
        answers.print(
            "newcomers: users that training never saw, with the model that they get; tuned: after "
            "a round of local training.",
            soft_wrap=True,
        )
    for label, row in result["algorithms"].items():
        if dropped := row.get("dropped"):
            answers.print(
                f"{label}: {counted(dropped, 'user')} diverged and {either(dropped, 'is', 'are')} "
                "left out of mean and worst: not to be compared with methods that serve everyone.",
                soft_wrap=True,
            )


def _title(measure: Measure) -> str:
    better = "more" if measure.more_is_better else "less"
    return f"test {measure.words}{measure.unit} ({better} is better)"


#: Users named in a sentence at most.
NAMED = 5

#: A table of streams is cut to this many rows on screen; --json has all.
ROWS = 24


def show_plan(plan: Plan, system: str, of: str = "") -> None:
    """The table of ``ucfl plan``, and its answer in words; ``of`` says whose W it is."""
    options = list(plan.options)
    if len(options) > ROWS:
        best = max(options, key=lambda option: option.score)
        kept = {
            *range(ROWS - 3),
            *(options.index(o) for o in (plan.recommended, best, options[-1])),
        }
        options = [options[i] for i in sorted(kept)]
    joules = not math.isnan(options[0].joules)
    rows = []
    for option in options:
        mark = "recommended" if option is plan.recommended else ""
        row = [str(option.streams), f"{option.silhouette:.3f}", f"{option.round_time:.4g}"]
        row += [f"{option.slowdown:.2f}", amount(option.down_bytes), amount(option.up_bytes)]
        row += [f"{option.joules:.4g}"] if joules else []
        row += [f"{option.without_slowest:.4g}"] if option.without_slowest is not None else []
        rows.append([*row, f"{option.score:.3f}", mark if option.affordable else "too dear"])
    headers = ["streams", "silhouette", f"round in {plan.unit}", "times FedAvg's", "down", "up"]
    headers += ["joules"] if joules else []
    headers += ["without the slowest"] if options[0].without_slowest is not None else []
    show_table([*headers, "score", ""], rows, f"Streams on {system}{of and f', by W of {of}'}")
    if len(options) < len(plan.options):
        answers.print(f"{len(plan.options) - len(options)} more rows with --json.")
    answers.print(f"Take {plan.reason}", soft_wrap=True)


def _from_to(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def show_fronts(found: Mapping[str, Spending], measure: Measure, unit: str) -> None:
    """The Pareto fronts of ``ucfl plan``: stretches of rounds of one method each."""
    kinds: list[tuple[Cost, str]] = [("time", unit), ("joules", "J")]
    for kind, sign in kinds:
        front = pareto_front(found, measure, kind)
        rows = []
        for label, stretch in itertools.groupby(front, key=lambda point: point.label):
            points = list(stretch)
            first, last = points[0], points[-1]
            rows.append(
                [
                    f"from {first.cost:.4g} {sign}",
                    label,
                    _from_to(str(first.round), str(last.round)),
                    _from_to(first.text(measure), last.text(measure)),
                ]
            )
        # Of two that cost the same as people read it, the better one.
        rows = list({row[0]: row for row in rows}.values())
        if rows:
            headers = ["for", "take", "rounds", f"test {measure.words}{measure.unit}"]
            what = "time" if kind == "time" else "energy"
            show_table(headers, rows, f"Best for the {what}, chosen by validation")


def show_best(
    found: Spending, best: Point, others: Sequence[Rival], measure: Measure, within: str
) -> None:
    """The answer of ``ucfl plan --within``, and which methods are as good as far as seeds tell."""
    rounds, seeds = counted(best.round, "round"), counted(best.seeds, "seed")
    said = (
        f"Within {within}, take {found.words}: {best.text(measure)}{measure.sign} mean "
        f"{measure.words} after {rounds} ({seeds})."
    )
    untested = [rival for rival in others if rival.p is None]
    same = [rival for rival in others if rival.p is not None and not rival.shown]
    worth = measure.goodness(best.test)
    better = [one for one in others if one.shown and measure.goodness(one.point.test) > worth]
    if better:
        are = either(len(better), "is", "are")
        said += (
            f" By test data, {_named(better, measure)} {are} better (a paired test over seeds), "
            f"but validation data, which choose, prefer {best.label}."
        )
    if same:
        said += f" A paired test over seeds does not tell it from {_named(same, measure)}."
    if untested:
        names = _named(untested, measure)
        said += f" It shares too few seeds with {names} for a test: run three or more with both."
    answers.print(said, soft_wrap=True)


def _named(rivals: Sequence[Rival], measure: Measure) -> str:
    """The first of some methods with their test values, and how many more there are."""
    words = [f"{r.point.label} ({r.point.text(measure)}{measure.sign})" for r in rivals[:NAMED]]
    more = f" and {len(rivals) - NAMED} more" if len(rivals) > NAMED else ""
    return ", ".join(words) + more


def show_times(times: dict[str, Any], unit: str) -> None:
    """When each algorithm reaches the target."""
    measure = Measure(**times["metric"])
    rows = [
        [
            label,
            f"{row['streams']:g}",
            "never" if math.isinf(row["time"]) else f"{row['time']:.4g}",
            measure.text(row["final"]),
            f"{row['end']:.4g}",
            str(row["rounds"]),
        ]
        for label, row in times["algorithms"].items()
    ]
    headers = ["algorithm", "streams", f"time in {unit}", "final mean", "time of all rounds"]
    goal = f"{measure.text(times['target'])}{measure.sign}"
    show_table([*headers, "rounds"], rows, f"Time to {goal} mean {measure.words}")
    if times["unequal"]:
        answers.print(times["unequal"], soft_wrap=True)


def show_story(story: Story) -> None:
    """What the report page tells, in the terminal."""

    def say(text: str) -> None:
        answers.print(text, soft_wrap=not answers.is_terminal)

    scenario, seeds = story["scenario"], story["seeds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    answers.rule(Text(f"{scenario['name']}: {story['users']} users, {which}"), align="left")
    say(" ".join(story["answer"]))
    rows, measure = [], measure_of(story)
    late = any(method["newcomers"] for method in story["methods"])
    for method in story["methods"]:
        cells = [method["label"], method["tested_model"]]
        for when in ("final", "best"):
            one = method[when]
            several = len(method["seeds"]) > 1
            for who, off in (("mean", "deviation"), ("worst", "worst_deviation")):
                cells.append(measure.text(one[who], one[off] if several else None))
        cells += _newcomers(method["newcomers"], measure) if late else []
        rows.append([*cells, f"{method['streams']:.4g}", str(method["rounds"])])
    headers = ["method", "tested model", "mean final", "worst final", "mean best", "worst best"]
    headers += [*(LATE if late else ()), "broadcasts", "rounds"]
    show_table(headers, rows, _title(measure).capitalize())
    _show_race(story)
    for users in story["populations"][:1]:
        _show_users(story, users)
    say("")
    for command in story["repeat"]["commands"]:
        say(f"Repeat it with: {command}")
    for sentence in story["repeat"]["programs"]:
        say(sentence)
    for note in story["notes"]:
        say(f"Note: {note}")


def _show_race(story: Story) -> None:
    """Time to the target on the paper's systems."""
    target = story["target"]
    if math.isnan(target["value"]):
        return
    rows = []
    for method in story["methods"]:
        times = [story["race"][name][method["label"]] for name in SYSTEMS]
        cells = ["never" if math.isinf(time) else f"{time:.1f}" for time in times]
        rows.append([method["label"], *cells])
    measure = measure_of(story)
    goal = f"{measure.text(target['value'])}{measure.sign} mean {measure.words}"
    title = f"Time in T_dl to {target['of']}'s final {goal}"
    show_table(["method", *SYSTEMS], rows, title)


def _show_users(story: Story, users: Story) -> None:
    """Streams, and the users who would be better off without personalisation."""
    seed = users["seed"]
    for label, learnt in users["collaborations"].items():
        answers.print(f"Streams of {label}, seed {seed}: {learnt['reason']}", soft_wrap=True)
    measure = measure_of(story)
    sign = 1 if measure.more_is_better else -1
    best = users["final"].get(story["personal"])
    if best is None or story["personal"] in SHARED_OR_ALONE:
        return
    for rival in SHARED_OR_ALONE:
        if rival not in users["final"]:
            continue
        pairs = zip(users["names"], best, users["final"][rival], strict=True)
        gains = [(name, sign * (mine - theirs)) for name, mine, theirs in pairs]
        losers = sorted((gain, name) for name, gain in gains if gain < 0)
        named = ", ".join(f"{name} ({measure.text(gain)})" for gain, name in losers[:NAMED])
        more = f" and {len(losers) - NAMED} more" if len(losers) > NAMED else ""
        answers.print(
            f"Seed {seed}: {len(losers)} of {counted(len(best), 'user')} "
            f"{either(len(losers), 'is', 'are')} better off with {rival} than with "
            f"{story['personal']}{': ' + named + more if losers else ''}.",
            soft_wrap=True,
        )


def amount(count: float) -> str:
    """Bytes as people read them; a dash where the model's size is not known."""
    if count == 0:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def show_survey(found: Survey) -> None:
    """Every cell of a reproduction: there or not, and its time."""
    rows = [
        [
            row["cell"],
            "done" if row["done"] else "to do",
            "?" if row["seconds"] is None else duration(row["seconds"]),
        ]
        for row in found.to_json()["cells"]
    ]
    show_table(["cell", "", "time"], rows)
    answers.print(found.forecast, soft_wrap=True)


def show_page(page: Page) -> None:
    """Tables, where the figures are, and what holds of the paper's claims."""
    for table in (table for shown in page.tables.values() for table in shown.tables):
        show_table(table.headers, table.rows, page.title(table.title))
        if table.note:
            answers.print(table.note, soft_wrap=True)
    for item, files in page.figures.items():
        said = ", ".join(map(str, files)) or "no cell of it is there yet"
        answers.print(f"{page.title(item.title)}: {said}", soft_wrap=True)
    for name, file in page.reports.items():
        there = f"The report of {name} is in {file}"
        nothing = f"No cell of {name} is there yet, so it has no report."
        answers.print(nothing if file is None else there, soft_wrap=True)
    if page.claims:
        show_table(CLAIM_HEADERS, claims_as_text(page.claims), "What the paper claims")
    if page.goals:
        show_table(
            CLAIM_HEADERS,
            claims_as_text(page.goals),
            "What the layered and the adaptive method are for",
        )
    if page.tables and page.claims:
        answers.print(COMPARED, soft_wrap=True)
    where = ", ".join(map(str, [page.csv, *page.csvs.values()]))
    answers.print(f"{page.survey.forecast} Each is a row of {where}", soft_wrap=True)
