"""The paper's tables and figures, and what is apart from them, each as its entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ucfl import algorithms
from ucfl.errors import check_name
from ucfl.paper import held_out, natural, yardsticks
from ucfl.paper.cells import Cell, Entry
from ucfl.paper.printed import (
    AS_PUBLISHED,
    CONCEPT_SHIFT,
    COVARIATE_SHIFT,
    LABEL_SHIFT,
    METHODS,
    SCENARIOS,
    TABLE_1,
    TABLE_2,
)
from ucfl.users import SCENARIOS as SETTINGS
from ucfl.users import Scenario

#: CIFAR-10 of sec. V-E, and EMNIST label shift with the users of sec. V-F.
COVARIATE_LABEL_SHIFT = "cifar10-covariate-label-shift"
LABEL_SHIFT_100 = "emnist-label-shift-100"

#: Local steps of a round, in those of FedAvg, where they are not the same (sec. V-A): two models,
#: five epochs, 60 batches of 20 (15 steps on each batch of 20, as published), every user's model
#: everywhere.
WORK = {
    "ditto": 2,
    "scaffold": 5,
    "pfedme": 4,
    "pfedme:form=publication": 48,
    "parallel-user-centric": 20,
}
#: Rounds of methods whose rounds cost ten of FedAvg's or more: machine time is short.
DEAR_ROUNDS = 100


@dataclass(frozen=True)
class Form:
    """The paper's own form, or a reduced one, whose cells are never mixed with the others.

    ``scenarios`` stand for the paper's and the held-out ones, by the names of those;
    ``variance_batches`` are the n_k of fig-batch, which trains for ``batch_rounds``, and dear
    methods train for ``dear_rounds`` at most. ``name`` is empty for the paper's form; ``options``
    ask ``ucfl reproduce`` for this one.
    """

    name: str
    scenarios: Mapping[str, Scenario]
    variance_batches: tuple[int, ...]
    batch_rounds: int
    dear_rounds: int
    options: tuple[str, ...] = ()

    def entry(self, scenario: str, algorithm: str, rounds: int | None = None) -> Entry:
        """The entry of an algorithm on what stands for the scenario."""
        found = self.scenarios[scenario]
        rounds = found.rounds if rounds is None else rounds
        rounds = min(rounds, self.dear_rounds) if is_dear(algorithm) else rounds
        return Entry(found.change({"rounds": rounds}), algorithms.find(algorithm).label)

    def with_rounds(self, rounds: int) -> Form:
        """The same with another number of rounds everywhere."""
        return Form(
            "-".join(filter(None, [self.name, f"{rounds}-rounds"])),
            {name: s.change({"rounds": rounds}) for name, s in self.scenarios.items()},
            self.variance_batches,
            batch_rounds=rounds,
            dear_rounds=rounds,
            options=(*self.options, "--rounds", str(rounds)),
        )

    def title(self, scenario: str) -> str:
        """The paper's heading where it has one, or the name of what stands for the scenario."""
        stands = self.scenarios[scenario].name
        return SCENARIOS.get(scenario, scenario) if stands == scenario else stands

    @property
    def note(self) -> str:
        """What a reader of its numbers must know; nothing for the paper's form."""
        return f"reduced form ({self.name}): not comparable with the paper" if self.name else ""


#: The paper's settings. Sec. V-F gives n_k = 100 for label shift, and N / 3 (the scenarios' own)
#: for the other two. The authors' code runs 300 rounds. A prototype came to the printed values on
#: CIFAR-10 in 150, and the method to its own on EMNIST with rotations in 60 (grid.csv), so these
#: run shorter: machine time is short.
PAPER = Form(
    name="",
    scenarios={
        LABEL_SHIFT: SETTINGS[LABEL_SHIFT].change({"variance_batch": 100}),
        COVARIATE_SHIFT: SETTINGS[COVARIATE_SHIFT],
        CONCEPT_SHIFT: SETTINGS[CONCEPT_SHIFT].change({"rounds": 150}),
        COVARIATE_LABEL_SHIFT: SETTINGS[COVARIATE_LABEL_SHIFT].change({"rounds": DEAR_ROUNDS}),
        LABEL_SHIFT_100: SETTINGS[LABEL_SHIFT_100],
        **{name: each.scenario for name, each in held_out.FEDERATIONS.items()},
        **natural.SCENARIOS,
        **yardsticks.SCENARIOS,
    },
    variance_batches=(100, 200, 330, 500, 660),
    batch_rounds=100,
    dear_rounds=DEAR_ROUNDS,
)


def _embedded() -> Form:
    small = Scenario(points=320, users=8, model="logistic", lr=0.05, batch=10, rounds=2)
    groups = {"groups": 4, "rotations": (0, 90, 180, 270)}
    labels = {"split": "dirichlet", "alpha": 0.4}
    fields: dict[str, dict[str, object]] = {
        LABEL_SHIFT: {**labels, "variance_batch": 8},
        COVARIATE_SHIFT: {**labels, **groups, "alpha": 8},
        CONCEPT_SHIFT: {"groups": 4, "permute_labels": True},
        COVARIATE_LABEL_SHIFT: {**labels, **groups, "alpha": 8},
        LABEL_SHIFT_100: {**labels, "users": 16},
    }
    return Form(
        name="embedded",
        scenarios={
            name: small.change({"name": f"embedded-{name}", **changes})
            for name, changes in fields.items()
        }
        | {name: each.stand_in for name, each in held_out.FEDERATIONS.items()}
        | natural.STAND_INS
        | yardsticks.STAND_INS,
        variance_batches=(2, 4, 8),
        batch_rounds=1,
        dear_rounds=2,
        options=("--embedded",),
    )


#: The whole pipeline on 320 of the embedded MNIST images: no download, under a minute.
EMBEDDED = _embedded()


#: The seeds of everything that is in the paper.
SEEDS = tuple(range(5))


@dataclass(frozen=True)
class Item:
    """A table, a figure or a set of runs.

    ``seeds`` are those that an algorithm is reported with. One that is ``apart`` is not in the
    paper: ``all`` leaves it out, and the paper's claims are not about it.
    """

    name: str
    title: str
    entries: Callable[[Form], list[Entry]]
    seeds: Callable[[str], tuple[int, ...]] = lambda algorithm: SEEDS
    apart: bool = False

    def cells(self, form: Form, seeds: Iterable[int] | None = None) -> list[Cell]:
        """Its own cells, or those of given seeds.

        A seed that the item reports is run by whatever reports it, any other one by everything.
        """
        entries = self.entries(form)
        due = {entry: self.seeds(entry.algorithm) for entry in entries}
        reported = list(dict.fromkeys(seed for each in due.values() for seed in each))
        return [
            Cell(entry, seed)
            for seed in (reported if seeds is None else seeds)
            for entry in entries
            if seed in due[entry] or seed not in reported
        ]


def _crossed(
    form: Form, names: Sequence[str], scenarios: Iterable[str] = tuple(SCENARIOS)
) -> list[Entry]:
    return [
        form.entry(scenario, name)
        for scenario in scenarios
        for name in names
        if not held_out.needs_groups(name) or form.scenarios[scenario].groups > 1
    ]


def _table1(form: Form) -> list[Entry]:
    printed = [form.entry(s, name) for s, values in TABLE_1.items() for name in values]
    return printed + _crossed(form, ["cfl", "fedfomo", "fedprox", AS_PUBLISHED])


def _table2(form: Form) -> list[Entry]:
    return [form.entry(s, name) for s, values in TABLE_2.items() for name in values]


#: Methods of the tables that fig-accuracy leaves out.
NOT_DRAWN = ("fedprox", "parallel-user-centric", AS_PUBLISHED)


def _accuracy(form: Form) -> list[Entry]:
    return _crossed(form, [name for name in METHODS if name not in NOT_DRAWN])


def _clusters(form: Form) -> list[Entry]:
    grouped = (COVARIATE_SHIFT, CONCEPT_SHIFT)
    return [form.entry(scenario, "user-centric:streams=4") for scenario in grouped]


def _silhouette(form: Form) -> list[Entry]:
    return _crossed(form, ["user-centric"])


#: Whom the paper times (sec. V-D), and local training and the oracle for reference.
TIMED = (
    "user-centric", "user-centric:streams=4", "fedavg", "cfl", "fedfomo", "local", "oracle",
)  # fmt: skip


def _time(form: Form) -> list[Entry]:
    return [form.entry(COVARIATE_SHIFT, name) for name in TIMED]


#: Who is in fig-parallel; label shift has no oracle.
BESIDE_PARALLEL = ("parallel-user-centric", "user-centric", "fedavg", "local", "oracle")


def _parallel(form: Form) -> list[Entry]:
    return _crossed(form, BESIDE_PARALLEL, (LABEL_SHIFT, COVARIATE_LABEL_SHIFT))


def batch_entries(form: Form, scenario: str) -> dict[int, Entry]:
    """The entries of fig-batch by n_k."""
    return {
        n_k: form.entry(scenario, f"user-centric:variance_batch={n_k}", form.batch_rounds)
        for n_k in form.variance_batches
    }


def _batch(form: Form) -> list[Entry]:
    return [
        entry
        for scenario in (LABEL_SHIFT_100, COVARIATE_SHIFT)
        for entry in batch_entries(form, scenario).values()
    ]


#: Kernel widths K − 1 of the sweep that the adaptive method is measured against, as n_k = N / K.
SWEPT = {width: round(1 / (width + 1), 4) for width in (1, 2, 4, 8, 16, 32)}
ADAPTIVE = "adaptive-user-centric"
#: Its first form, which sends more and changes its mind sooner.
GENEROUS = f"{ADAPTIVE}:streams=all:doubt=1.0"
#: Names for people of what the paper does not print.
OURS = {
    held_out.LAYERED: "Layered",
    ADAPTIVE: "Adaptive",
    GENEROUS: "Adaptive, streams=all, doubt=1",
    **{
        f"user-centric:variance_batch={n_k}": f"Proposed, n_k = N/{width + 1} (h = {width})"
        for width, n_k in SWEPT.items()
    },
}


def sweep_entries(form: Form) -> dict[int, Entry]:
    """The paper's rule with every width, under label shift."""
    return {
        width: form.entry(LABEL_SHIFT, f"user-centric:variance_batch={n_k}")
        for width, n_k in SWEPT.items()
    }


def _beyond(form: Form) -> list[Entry]:
    others = ["oracle", "user-centric", "user-centric:streams=4", "fedavg"]
    own = _crossed(form, [held_out.LAYERED, ADAPTIVE, GENEROUS, *others])
    return [*own, *sweep_entries(form).values()]


def _held_out(form: Form) -> list[Entry]:
    methods = [*held_out.MAIN, *held_out.other_methods(), *held_out.PARTS]
    return _crossed(form, methods, held_out.FEDERATIONS)


def _natural(form: Form) -> list[Entry]:
    return [
        form.entry(name, method)
        for name, scenario in natural.SCENARIOS.items()
        for method in natural.methods(scenario)
    ]


def _yardsticks(form: Form) -> list[Entry]:
    return [
        form.entry(scenario.name, method)
        for each in yardsticks.YARDSTICKS.values()
        for scenario in each.scenarios.values()
        for method in each.printed
    ]


ITEMS = {
    item.name: item
    for item in (
        Item("table1", "Table I: average test accuracy", _table1),
        Item("table2", "Table II: the worst user's accuracy", _table2),
        Item("fig-accuracy", "Accuracy against rounds", _accuracy),
        Item("fig-clusters", "Who learns from whom", _clusters),
        Item("fig-silhouette", "Silhouette against the number of streams", _silhouette),
        Item("fig-time", "Accuracy against time on air", _time),
        Item("fig-parallel", "Proposed and parallel user-centric learning", _parallel),
        Item("fig-batch", "Effect of n_k, the batch size of the variance", _batch),
        Item("beyond", "Beyond the paper: layered and adaptive mixing", _beyond),
        Item("held-out", "The held-out set", _held_out, held_out.seeds, apart=True),
        Item("natural", "Natural users", _natural, lambda name: natural.SEEDS, apart=True),
        Item(
            "yardsticks", "Others' tables", _yardsticks, lambda name: yardsticks.SEEDS, apart=True
        ),
    )
}


def find(names: Iterable[str]) -> list[Item]:
    """Items by name, in the paper's order; ``all`` or nothing means every one of the paper."""
    wanted = list(names) or ["all"]
    for name in wanted:
        check_name("table or figure", name, [*ITEMS, "all"])
    return [
        item
        for item in ITEMS.values()
        if item.name in wanted or ("all" in wanted and not item.apart)
    ]


def in_order(items: Sequence[Item], form: Form, seeds: Sequence[int] | None = None) -> list[Cell]:
    """Every cell of the items once, ordered by what it proves; without seeds, of their own.

    Seed by seed, the tables' cells before the figures', those that are reported with more seeds
    before the others, and dear methods last among them.
    """
    names = [scenario.name for scenario in form.scenarios.values()]
    places: dict[Cell, tuple[int, ...]] = {}
    turns: dict[int, int] = {}
    for i, item in enumerate(items):
        for cell in item.cells(form, seeds):
            scenario, algorithm = cell.entry.scenario.name, cell.entry.algorithm
            turn = turns.setdefault(cell.seed, len(turns))
            few, dear = -len(item.seeds(algorithm)), is_dear(algorithm)
            place = (turn, i, few, dear, names.index(scenario), work(algorithm))
            places.setdefault(cell, place)
    return sorted(places, key=lambda cell: places[cell])


def longest(items: Iterable[Item], form: Form) -> dict[str, Scenario]:
    """The scenarios of the items, by the paper's names, with the rounds of their longest entries.

    Those of any item count: dear methods and fig-batch, which are cut short, choose no rounds.
    """
    every = [entry.scenario for item in ITEMS.values() for entry in item.entries(form)]
    asked = {entry.scenario.name for item in items for entry in item.entries(form)}
    return {
        name: max((s for s in every if s.name == stands.name), key=lambda s: s.rounds)
        for name, stands in form.scenarios.items()
        if stands.name in asked
    }


def is_dear(algorithm: str) -> bool:
    """Whether a round costs ten of FedAvg's or more."""
    return work(algorithm) >= 10


def work(algorithm: str) -> int:
    """Local steps of a round, in those of FedAvg."""
    return WORK.get(algorithm, WORK.get(algorithm.split(":")[0], 1))
