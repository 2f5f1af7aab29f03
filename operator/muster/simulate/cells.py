"""The cells of one line of a trace: what may stand in each column, with errors that say where and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster.scheduling.snapshot import FOREVER
from muster.simulate.cluster import LEVELS
from muster.simulate.errors import SimulationError

CAPACITIES: Final = ("on-demand", "reserved", "spot")
MODES: Final = ("required", "preferred")
SHORTEST: Final = 0.001
"""Seconds. Where time counts from 1970, less would be lost in rounding, and a job would never end."""
LATEST: Final = 1e10
"""Seconds, three hundred years; what counts milliseconds from 1970 is above it."""
MOST_GPUS: Final = 1_000_000
_MOST_SPARES: Final = 1_000
_COUNTED: Final = "seconds, counted from the start of the trace"
_SECONDS: Final = {"submit": _COUNTED, "deadline": _COUNTED, "duration": "seconds", "limit": "seconds"}
"""What is to be written into columns that are no counts: schedulers' exports have dates and hours there."""


@dataclass(frozen=True)
class Form:
    """How a gang must lie.

    Attributes:
        slices: (level, GPUs) pairs, widest first.
        balanced: a level, or "".
    """

    slices: tuple[tuple[str, int], ...] = ()
    balanced: str = ""


class Cells:
    """One line, with errors that say where."""

    def __init__(self, row: dict[str, str], where: str) -> None:
        self._row, self._where = row, where

    def text(self, column: str) -> str:
        return (self._row.get(column) or "").strip()

    def name(self, column: str) -> str:
        return self.text(column) or self._fail(column, "is empty; write a name")

    def number(self, column: str, *, least: float, most: float, missing: float | None = None) -> float:
        text = self.text(column)
        if not text and missing is not None:
            return missing
        mend = f"write {_SECONDS.get(column, 'a count')}, in plain digits"
        if not text:
            self._fail(column, f"is empty; {mend}")
        try:
            value = float(text)
        except ValueError:
            self._fail(column, f"is no number: {text!r}; {mend}")
        if "_" in text or not text.isascii():  # Python's own notation: a slip here, in 1_0 for 1.0
            self._fail(column, f"is no number: {text!r}; {mend}")
        if not least <= value <= most:  # nor nan
            self._fail(column, f"must be between {_plain(least)} and {_plain(most)}, not {text}")
        return value

    def whole(self, column: str, *, least: int, most: int, missing: int | None = None) -> int:
        value = self.number(column, least=least, most=most, missing=None if missing is None else float(missing))
        if value != int(value):
            self._fail(column, f"must be a whole number, not {self.text(column)}")
        return int(value)

    def one_of(self, column: str, allowed: Sequence[str]) -> str:
        value = self.text(column).lower()
        if value and value not in allowed:
            self._fail(column, f"must be {' or '.join(allowed)}, not {value!r}")
        return value

    def capacities(self) -> str:
        """Kinds of capacity in order of preference, "|" between them; "" for none."""
        value = self.text("capacity").lower()
        kinds = [kind.strip() for kind in value.split("|")] if value else []
        for kind in kinds:
            if kind not in CAPACITIES:
                told = f"must be {' or '.join(CAPACITIES)}, or several of them like spot|on-demand, not {value!r}"
                self._fail("capacity", told)
            if kinds.count(kind) > 1:
                self._fail("capacity", f"names {kind} twice: {value!r}; name each kind once, the best first")
        return "|".join(kinds)

    def base(self, sizes: tuple[int, int, int]) -> str:
        """The kind of capacity of an elastic job's first `min` GPUs, whose others are on the one kind that `capacity`
        names; "" for none."""
        base, kind = self.one_of("base", CAPACITIES), self.capacities()
        if not base:
            return ""
        if sizes[0] >= sizes[1]:
            self._fail("base", "is of elastic jobs: give min below gpus or max, or leave base empty")
        if not kind or "|" in kind:
            self._fail("base", "needs the one kind of the GPUs beyond it: name it in capacity, like spot")
        if base == kind:
            self._fail("base", f"must be another kind than that of the GPUs beyond it, {kind}")
        return base

    def sizes(self, gpus: int) -> tuple[int, int, int]:
        """Fewest and most GPUs, both `gpus` for a job that is not elastic, and the step; 0 for one worker's."""
        least = self.whole("min", least=1, most=MOST_GPUS, missing=gpus)
        most = self.whole("max", least=1, most=MOST_GPUS, missing=gpus)
        step = self.whole("step", least=1, most=MOST_GPUS, missing=0) if self.text("step") else 0
        if least > gpus:
            self._fail("min", f"must be at most the job's gpus, {gpus}, not {least}")
        if most < gpus:
            self._fail("max", f"must be at least the job's gpus, {gpus}, not {most}")
        if step and least == most:
            self._fail("step", "is of elastic jobs: give min below max too, or leave step empty")
        for column, size in (("gpus", gpus), ("max", most)):
            if step and (size - least) % step:
                self._fail(column, f"must be min, {least}, and a multiple of step, {step}, not {size}")
        return least, most, step

    def spares(self, sizes: tuple[int, int, int]) -> int:
        spares = self.whole("spares", least=0, most=_MOST_SPARES, missing=0)
        if spares and sizes[0] < sizes[1]:
            self._fail("spares", "are of jobs of one size: an elastic one goes on with fewer workers; leave it empty")
        return spares

    def deadline(self, submit: float) -> float:
        deadline = self.number("deadline", least=0.0, most=LATEST, missing=FOREVER)
        if deadline <= submit:
            self._fail(
                "deadline",
                f"must be after submit, {submit:.10g}, not {self.text('deadline')}: it is a moment that is counted as "
                "submit is, no length",
            )
        return deadline

    def form(self, sizes: tuple[int, int, int], gpus: int) -> Form:
        """How the gang must lie; slices nest inside its required domain, and divide every size that it may have."""
        balanced = self.one_of("balanced", LEVELS)
        mode, _, level = self.topology().partition(":")
        around, size = level if mode == "required" else "", 0
        slices: list[tuple[str, int]] = []
        for part in self.text("slices").split("|") if self.text("slices") else ():
            inner, colon, digits = (word.strip() for word in part.partition(":"))
            plain = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MOST_GPUS))
            if inner not in LEVELS or not colon or not plain or not 0 < int(digits) <= MOST_GPUS:
                self._fail(
                    "slices",
                    f"must be levels with GPUs like rack:32|host:8, with {' or '.join(LEVELS)}, not {part.strip()!r}",
                )
            if around in LEVELS and LEVELS.index(inner) <= LEVELS.index(around):
                self._fail("slices", f"must go from wide to narrow: {inner} is not narrower than {around}")
            if size and (size % int(digits) or size == int(digits)):
                self._fail("slices", f"must nest: give {inner} fewer GPUs, a number that divides {size}, not {digits}")
            around, size = inner, int(digits)
            slices.append((inner, size))
        if slices:
            self._whole_slices(slices[0], sizes, gpus)
        return Form(tuple(slices), balanced)

    def _whole_slices(self, widest: tuple[str, int], sizes: tuple[int, int, int], gpus: int) -> None:
        level, size = widest
        least, most, step = sizes
        if least < most and (not step or step % size):
            self._fail("step", f"must be a multiple of the slices' {size} GPUs ({level}:{size}): give one that is")
        for column, given in (("gpus", gpus), ("min", least), ("max", most)):
            if given % size:
                self._fail(column, f"must be whole slices of {size} GPUs ({level}:{size}), not {given}")

    def topology(self) -> str:
        value = self.text("topology")
        mode, colon, level = value.partition(":")
        if value and (mode not in MODES or not colon or not level):
            self._fail("topology", f"must be like required:rack or preferred:block, not {value!r}")
        return value

    def _fail(self, column: str, problem: str) -> str:
        raise SimulationError(f"{self._where}: {column} {problem}")


def _plain(bound: float) -> str:
    return f"{bound:,.0f}" if bound == int(bound) else f"{bound:g}"
