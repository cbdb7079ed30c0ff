"""Quantities as people write them: a number with its unit (``20MHz``, ``23dBm``, ``85%``).

In Python they are plain numbers of one base unit (hertz, metres, seconds, watts, bytes, shares).
What is typed must name the unit, unless the option's name does (``gap_db=3``): "20" of a bandwidth
could be hertz or megahertz, and both are numbers that a network can have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ucfl.errors import UcflError

_WRITTEN = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?")

FREQUENCY = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
LENGTH = {"m": 1.0, "km": 1e3}
TIME = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}
POWER = {"W": 1.0, "mW": 1e-3, "kW": 1e3}
ENERGY = {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6}
SIZE = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
SHARE = {"%": 0.01}
DECIBELS = {"dB": 1.0}
#: Absolute power on a logarithmic scale; watts are converted (:func:`_number`).
DECIBEL_MILLIWATTS = {"dBm": 1.0}


@dataclass(frozen=True)
class Quantity:
    """What a number stands for: its units, and the bounds within which it makes sense.

    ``plain``: a typed number without a unit is one of the base unit, the first of ``units`` with
    factor 1. ``words`` describe it to people.
    """

    units: Mapping[str, float]
    low: float
    high: float
    words: str = ""
    plain: bool = False

    def __call__(self, given: Any) -> Any:
        """The number in base units; a validator of pydantic's, so it raises ValueError."""
        value = self._read(given) if isinstance(given, str) else given
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value  # pydantic says what is wrong with it
        if not (math.isfinite(value) and self.low <= value <= self.high):
            raise ValueError(
                f"it lies between {self.text(self.low)} and {self.text(self.high)}, "
                f"not at {self.text(value)}{self._hint(value, given)}"
            )
        return value

    def _read(self, text: str) -> float:
        found = _WRITTEN.fullmatch(text.strip())
        unit = found[2].strip() if found and found[2] else None
        known = [*self.units, *(POWER if self.units is DECIBEL_MILLIWATTS else ())]
        if found is None or (unit is not None and unit not in known):
            raise ValueError(f"write a number and one of {', '.join(known)}, as {self._example}")
        if unit is None and not self.plain:
            raise ValueError(f"write its unit, as {self._example}")
        return self._number(float(found[1]), unit)

    def _number(self, number: float, unit: str | None) -> float:
        if unit is None or unit in self.units:
            return number * (1.0 if unit is None else self.units[unit])
        if number <= 0:
            raise ValueError("a power in watts is above 0")
        return 10 * math.log10(number * POWER[unit] * 1e3)

    def text(self, value: float) -> str:
        """For people, in the unit that makes it shortest to read."""
        if len(self.units) == 1:
            ((unit, factor),) = self.units.items()
            return f"{value / factor:.4g}{'' if unit == '%' else ' '}{unit}"
        fitting = [(f, u) for u, f in self.units.items() if abs(value) >= f and _decimal(f)]
        factor, unit = max(fitting, default=(1.0, next(iter(self.units))))
        return f"{value / factor:.4g} {unit}"

    @property
    def _example(self) -> str:
        middle = math.sqrt(self.low * self.high) if self.low > 0 else (self.low + self.high) / 2
        return self.text(float(f"{middle:.1g}")).replace(" ", "")

    def _hint(self, value: float, given: Any) -> str:
        """What it may have been meant as, as it was given."""
        if self.units is DECIBELS and math.isfinite(value) and value > self.high:
            return (
                f" (if {value:g} is a ratio of powers, write 10 log10 of it, "
                f"{10 * math.log10(value):.3g} dB)"
            )
        has_unit = isinstance(given, str) and given.strip().endswith("%")
        if self.units is SHARE and 1 < value <= 100 and not has_unit:
            return f" (write {value:g}% or {value / 100:g})"
        return ""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Checks a field of type ``Annotated[float, Quantity(...)]``."""
        return core_schema.no_info_before_validator_function(self, handler(source))


def _decimal(factor: float) -> bool:
    """Whether people expect a unit in output: seconds, kilobytes; no minutes, no kibibytes."""
    return math.log10(factor).is_integer()


def quantities(owner: type) -> dict[str, Quantity]:
    """The quantities among the fields of a dataclass, by name."""
    found = {}
    for name, hint in get_type_hints(owner, include_extras=True).items():
        for extra in getattr(hint, "__metadata__", ()):
            if isinstance(extra, Quantity):
                found[name] = extra
    return found


def read(quantity: Quantity, text: str, what: str) -> float:
    """A quantity that somebody typed as ``what``; the error is one sentence."""
    try:
        return float(quantity(text))
    except ValueError as error:
        raise UcflError(f"{what} {text}: {error}.") from None


#: Message sizes that people give on the command line.
BYTES = Quantity(SIZE, 1, 1e13, "bytes of a model", plain=True)
SECONDS = Quantity(TIME, 1e-9, 1e12, "seconds")
JOULES = Quantity(ENERGY, 1e-9, 1e15, "joules")
