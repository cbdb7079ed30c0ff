"""What an algorithm is: hyper-parameters, and pure functions of the federation and a state."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ucfl.algorithms.facts import Facts, Findings, code, hyper_parameters, implementation
from ucfl.collaboration import Collaboration, Mixing, MixingByPart
from ucfl.errors import UcflError, first_line
from ucfl.federation import Architecture, Federation, LocalTraining
from ucfl.federation.objective import Mixture
from ucfl.options import check_fields
from ucfl.users import Split
from ucfl.wireless import Audience, Traffic

#: Tensors and plain values by name: all that an algorithm remembers. It is saved as it stands.
State = Mapping[str, Tensor | float | int | str | bool]


def tensor(state: State, name: str) -> Tensor:
    """One of a state's tensors."""
    value = state[name]
    assert isinstance(value, Tensor)
    return value


def best_cluster(state: State, arrivals: Federation) -> Tensor:
    """Θ [q, P]: for each newcomer, the cluster's model with the lowest loss on its training data.

    The rule of IFCA (Ghosh et al., NeurIPS 2020); clusters are the ``labels`` [m] of ``theta``.
    """
    labels, theta = tensor(state, "labels"), tensor(state, "theta")
    clusters = labels[labels >= 0].unique()  # but for users that diverged
    first = [torch.nonzero(labels == cluster)[0, 0] for cluster in clusters]
    models = theta[torch.stack(first)]
    return models[arrivals.losses(models, "train").nan_to_num(torch.inf).argmin(0)]


def mixture_of(fed: Federation | Architecture, name: str) -> Mixture:
    """What several models predict together, by the federation's objective."""
    if fed.objective.mixture is None:
        raise UcflError(
            f"{name} mixes the predictions of several models, and the objective "
            f"{fed.objective.name!r} does not say how; give it a mixture= or choose another method."
        )
    return fed.objective.mixture


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated method. Fields are its hyper-parameters; nothing else is kept in the object."""

    #: What it is called in commands, tables and figures; the class's own name if none is given.
    name: ClassVar[str]
    reference: ClassVar[str] = ""
    #: What a round sends and computes, in words; `traffic` gives the numbers.
    cost: ClassVar[str] = ""
    #: Whether users may be shared out to processes; not where a method looks at all models at once.
    sharded: ClassVar[bool] = False
    #: Whether a person may choose how many streams go down.
    streams_can_be_chosen: ClassVar[bool] = False
    #: Which model a user would deploy, and is tested: aggregated, personalised or local.
    tested_model: ClassVar[str]

    #: Whether users may be on machines of their own: a round sends one row of each user, which the
    #: server mixes by `rule`, and nothing else passes between them. Not inherited.
    deployable: ClassVar[bool] = False
    #: What of the state has a row for each user, which is the user's own.
    of_users: ClassVar[frozenset[str]] = frozenset({"theta"})

    #: Scenario fields that decide nothing here: it has its own, or no use for them.
    unused: ClassVar[frozenset[str]] = frozenset({"variance_batch"})

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__
        if "deployable" not in vars(cls):
            cls.deployable = False

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    def check(self, fed: Federation) -> None:  # noqa: B027 (most algorithms take any users)
        """Raise a :class:`UcflError` where these users cannot be served; called before anything."""

    def cohort(self, fed: Federation, t: int) -> Tensor | None:
        """[m]: who takes part in round t (None: everyone), where a method has a say in it."""
        return fed.cohort(t)

    @abstractmethod
    def start(self, fed: Federation) -> State:
        """The state before the first round."""

    @abstractmethod
    def round(self, fed: Federation, state: State, t: int) -> State:
        """One communication round; t counts from 1."""

    @abstractmethod
    def traffic(self, fed: Federation, state: State) -> Traffic:
        """What a round sends and computes; asked with the state after it."""

    def measured(self, fed: Federation) -> dict[str, Tensor]:
        """What each user [m, …] sends once, before the first round; most send nothing."""
        return {}

    def begun(self, fed: Federation, sent: Mapping[str, Tensor]) -> State:
        """The state before the first round, made of what everyone sent; no user's data is seen."""
        return self.start(fed)

    def rule(self, fed: Federation, state: State) -> Mixing | MixingByPart | None:
        """W of a round among who is present, where all that is mixed is one row of each user."""
        return None

    def mixed(self, fed: Federation, state: State, rows: Tensor, since: Tensor) -> Tensor:
        """WΘ: what everyone receives of the rows that everyone sends, W being the ``rule``.

        ``since`` are the rows that users had received before (:meth:`Federation.exchange`). Where
        users are on machines of their own, the server mixes.
        """
        if fed.server is not None:
            return fed.server(rows)
        rule = self.rule(fed, state)
        assert rule is not None
        return fed.exchange(rule, rows, since)

    def joined(
        self,
        fed: Federation,
        state: State,
        ours: Mapping[str, Tensor],
        theirs: Mapping[str, Tensor],
    ) -> State:
        """The state with one more user behind the others, to whom nothing changes.

        ``ours`` is what the others sent before the first round, ``theirs`` what the new one sends.
        It has no weight in anybody's mixture.
        """
        return state

    def next_traffic(self, fed: Federation, state: State) -> Traffic:
        """What the next round will, as deadlines ask; as the last one did, for most."""
        return self.traffic(fed, state)

    def start_traffic(self, fed: Federation, state: State) -> Traffic:
        """What happens once, before the first round; most algorithms have nothing."""
        return Traffic(down=0, up=0, work=0)

    def models(self, state: State) -> Tensor:
        """Θ: the model that each user would deploy now."""
        return tensor(state, "theta")

    def model(self, architecture: Architecture, state: State, user: int) -> nn.Module:
        """The model that a user would deploy now, as a module; mixtures have one of their own."""
        return architecture.module(self.models(state)[user])

    def metrics(self, fed: Federation, state: State, split: Split = "test") -> Mapping[str, Tensor]:
        """The objective's metrics [m] of the models that users would deploy."""
        return fed.metrics(self.models(state), split)

    def newcomers(self, fed: Federation, state: State, arrivals: Federation) -> Tensor | None:
        """Θ [q, P] for the users of ``arrivals``, who come when training is over.

        Nobody else's model changes. None: the method has no model for who did not train with it.
        """
        return None

    def audience(self, state: State) -> Audience | None:
        """Which broadcast each user listens to; None where everyone listens to all."""
        return Audience.of(tensor(state, "labels").cpu().numpy()) if "labels" in state else None

    def collaboration(self, state: State) -> Collaboration | None:
        """Who learns from whom, for reports and plans; None for methods that do not measure it."""
        return None

    def training(self, fed: Federation) -> LocalTraining:
        """How users train; the scenario's, unless the method has its own settings."""
        return fed.training

    def describe(self, state: State) -> str:
        """What a person should know after the start, in plain words; most have nothing to say."""
        return ""

    @property
    def label(self) -> str:
        """The name with every hyper-parameter that differs from its default."""
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != _default(field)
        ]
        return ":".join([self.name, *changed])

    @property
    def facts(self) -> Facts:
        """What is stored with a run of it, for readers without this code."""
        return Facts(
            name=self.name,
            label=self.label,
            tested_model=self.tested_model,
            implementation=implementation(type(self)),
            hyper_parameters=hyper_parameters(self),
            reference=self.reference,
            cost=self.cost,
            streams_can_be_chosen=self.streams_can_be_chosen,
            code=code(type(self), Algorithm),
        )

    def findings(self, state: State) -> Findings:
        """What is stored beside a state, for the same readers."""
        return Findings(self.audience(state), self.collaboration(state))


def check_state(name: str, state: object) -> None:
    """Raise unless a state can be stored."""
    if not isinstance(state, Mapping):
        raise UcflError(
            f"{name}: start() and round() must give a mapping from names to tensors and plain "
            f"values, not {type(state).__name__}."
        )
    for key, value in state.items():
        if not isinstance(key, str):
            raise UcflError(f"{name}: its state has the key {key!r}; keys must be texts.")
        if not isinstance(value, Tensor | float | int | str):
            raise UcflError(
                f"{name}: its state holds {key!r}, which is {type(value).__name__}: keep tensors, "
                "numbers and texts there, so that a run can be stored and resumed."
            )


def declared(
    algorithm: Algorithm,
    by: Literal["traffic", "next_traffic", "start_traffic"],
    fed: Federation,
    state: State,
) -> Traffic:
    """What one of an algorithm's functions says is sent; raise unless it is a :class:`Traffic`."""
    said = getattr(algorithm, by)(fed, state)
    if not isinstance(said, Traffic):
        raise UcflError(
            f"{algorithm.name}: {by}(fed, state) must return a Traffic, as Traffic(down=1, up=1), "
            f"not {said!r:.60}."
        )
    return said


def description(algorithm: Algorithm, state: State) -> str:
    """What an algorithm tells people after the start, with its label; empty for nothing."""
    said: object = algorithm.describe(state)
    if not isinstance(said, str):
        raise UcflError(
            f'{algorithm.name}: describe(state) must return a text for people, "" for nothing, '
            f"not {said!r:.60}."
        )
    return f"{algorithm.label}: {said}" if said else ""


def check_models(algorithm: Algorithm, fed: Federation, state: State, by: str) -> None:
    """Raise unless the models of a state, which ``by`` gave, are rows, one for each user."""
    try:
        models = algorithm.models(state)
    except (LookupError, AssertionError, TypeError, AttributeError) as error:
        raise UcflError(
            f"{algorithm.name}: models(state) fails on what {by} gives "
            f"({type(error).__name__}: {first_line(error)}); keep Θ under 'theta', or write a "
            "models() of its own."
        ) from error
    if not (isinstance(models, Tensor) and models.is_floating_point() and models.dim() == 2):
        found = tuple(models.shape) if isinstance(models, Tensor) else type(models).__name__
        raise UcflError(
            f"{algorithm.name}: after {by}, models(state) must be Θ, [users, P] = "
            f"{(fed.m, fed.rows.size)} numbers, not {found}."
        )
    if len(models) != fed.m:
        raise UcflError(
            f"{algorithm.name}: after {by}, models(state) has {len(models)} rows for {fed.m} "
            "users; start() and round() must keep one for each."
        )
    plain = type(algorithm).metrics is Algorithm.metrics  # mixtures have rows of their own
    if plain and models.shape[1] != fed.rows.size:
        raise UcflError(
            f"{algorithm.name}: after {by}, models(state) has the shape {tuple(models.shape)}, but "
            f"the model has {fed.rows.size} parameters; start() and round() must keep Θ "
            f"{(fed.m, fed.rows.size)}."
        )


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()
