"""What jobs and queues say about time and money: windows, budgets. Used by TrainingJob and TrainingQueue."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Final

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator

from muster.api.common import Count, Duration, Model, Timestamp, above_zero, matches
from muster.api.schema import Int64, MapList, Rule, SchemaDefault

UTC: Final = "Etc/UTC"

MAX_USES: Final = 128
"""GPU types of one account, each profile of slices counted as one: three models of GPUs have twenty and more."""

_CRON_FIELD: Final = "[-0-9A-Za-z*/,#]+"
CRON_PATTERN: Final = f"^{_CRON_FIELD}( +{_CRON_FIELD}){{4}}$"

Cron = Annotated[
    str,
    Len(9, 256),
    matches(
        CRON_PATTERN,
        "write a cron expression of five fields, like '0 20 * * MON-FRI': minute, hour, day of month, month, weekday",
    ),
]
"""Five fields, as in cron(8)."""

TimeZone = Annotated[
    str,
    Len(1, 64),
    matches(
        "^[A-Za-z][-+_A-Za-z0-9]*(/[-+_A-Za-z0-9]+)*$", "use the name of a time zone, such as Europe/Berlin or Etc/UTC"
    ),
]
"""A name of the IANA time zone database."""

Hours = Annotated[int, Ge(1), Le(2**31 - 1)]
Money = Annotated[int, Ge(1), Le(2**31 - 1)]
"""In the currency of the operator's prices."""

_AMOUNT: Final = r"^[0-9]+(\.[0-9]+)?$"


def _amount(text: str) -> str:
    if not re.fullmatch(_AMOUNT, text):
        raise ValueError(f"{text!r} is no amount such as 12.50")
    return text


DecimalText = Annotated[str, AfterValidator(_amount)]
"""A number that is not below zero, as decimal text in a status: the API server does not look at it there."""
Cost = Annotated[DecimalText, Len(1, 32), matches(_AMOUNT, "write an amount such as 12.50")]
"""Money as decimal text, in the currency of the operator's prices."""


class AtWindowEnd(str, Enum):
    """What happens to a gang that runs when its window closes."""

    STOP = "stop"
    """it saves a checkpoint and stops, and goes on in the next window."""
    FINISH = "finish"
    """it runs to its end; the window only says when it may start."""


class Window(Model):
    """When the gang may run: from each moment of a cron expression on, for a while."""

    start: Cron
    """When a window opens, as a cron expression: `0 20 * * MON-FRI` for eight in the evening on weekdays."""
    duration: Annotated[Duration, above_zero("a window of no length never opens: give a duration above zero")]
    """How long each window stays open, like 10h. Windows that overlap are one."""
    time_zone: Annotated[TimeZone, SchemaDefault(UTC)] = UTC
    """The time zone of `start`, such as Europe/Berlin."""
    at_end: AtWindowEnd | None = None
    """What happens to a gang that runs when the window closes. Left out: stop."""


class JobBudget(Model):
    """What the job may use in all, over all its runs. At the limit the gang saves a checkpoint and stops, and the job
    waits until the limit is raised."""

    RULES = (
        Rule("has(self.gpuHours) || has(self.cost)", "an empty budget limits nothing: give gpuHours or cost, or both"),
    )

    gpu_hours: Hours | None = None
    """GPUs times hours that they are held, from placement until the last pod is gone. A slice of a GPU counts as its
    part of it."""
    cost: Money | None = None
    """Money at the prices of the GPUs that it holds. Nodes whose GPUs have no price cost nothing."""


class AtBudgetEnd(str, Enum):
    """What happens when a queue has used up its budget of the month."""

    HOLD = "hold"
    """it admits nothing more until the next month; what runs goes on."""
    DRAIN = "drain"
    """besides, the gangs that run save a checkpoint, stop, and wait; those with preemptible: false go on."""


class MonthlyBudget(Model):
    """What the queue's jobs may use in a calendar month, in UTC."""

    RULES = (
        Rule("has(self.gpuHours) || has(self.cost)", "an empty budget limits nothing: give gpuHours or cost, or both"),
    )

    gpu_type: Annotated[str, Len(0, 63), SchemaDefault("")] = ""
    """GPU type that the budget counts, slices of such GPUs included, as in a job's `workers.gpuType`. Empty: all
    GPUs."""
    gpu_hours: Hours | None = None
    """GPUs times hours that they are held, by the queue's jobs and those of the queues below it; a whole number."""
    cost: Money | None = None
    """Money at the prices of the GPUs that are held; a whole number. Nodes whose GPUs have no price cost nothing."""
    at_limit: AtBudgetEnd | None = None
    """What happens when it is used up. Left out: hold."""


Currency = Annotated[str, Len(3, 3), matches("^[A-Z]{3}$", "write a code of ISO 4217 like EUR")]


class Usage(Model):
    """What the job has used in placements that have ended, and in the present one up to its `countedAt`."""

    gpu_seconds: Annotated[int, Ge(0), Int64()] = 0
    """GPUs times seconds that they were held, slices as parts of one."""
    cost: Cost | None = None
    """What that cost, as far as the GPUs have a price."""
    currency: Currency | None = None
    """Of `cost` and `hourly`: that of the operator's prices when they were last counted, as ISO 4217 has it. Absent
    where they name none."""
    hourly: Cost | None = None
    """What the present placement costs an hour, at the operator's prices when the status was last written. Absent
    without a placement, and for GPUs without a price."""


class MonthUse(Model):
    """What the queue's jobs have used of one GPU type in the month."""

    gpu_type: Annotated[str, Len(0, 63)]
    """GPU type; that of slices of GPUs names their profile, like `A100-MIG-3g.20gb`."""
    gpu_seconds: Annotated[int, Ge(0), Int64()] = 0
    """GPUs, or slices of the type, times seconds that they were held, up to `until`. Budgets count a slice as its part
    of the GPU's compute."""
    cost: Cost | None = None
    """What that cost, as far as they have a price, in the month's `currency`."""
    gpus: Count = 0
    """GPUs, or slices of the type, that are held since `until`."""
    hourly: Cost | None = None
    """What these cost in an hour."""


class Month(Model):
    """The queue's account of a calendar month, in UTC, that of the queues below it included. Kept for queues with
    `budgets`, and written when the number of GPUs changes: what is used now follows from it. Where the budgets are
    taken away it stays for the rest of the month, and counts no more until there are some again."""

    until: Timestamp
    """Up to when use is counted, in the month of this moment."""
    currency: Currency | None = None
    """Of all that is money in it: that of the operator's prices, as ISO 4217 has it. Absent where they name none."""
    uses: Annotated[tuple[MonthUse, ...], Len(0, MAX_USES), MapList(("gpuType",))] = ()
    """By GPU type."""
