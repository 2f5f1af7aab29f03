"""What follows a step whose numbers are not sound."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

from annotated_types import Ge, Le, Len
from pydantic import BeforeValidator

from muster.api.common import Model, cel_text
from muster.api.schema import IntOrString, Rule

_FACTOR: Final = r"^([2-9]|[1-9][0-9]{1,5})(\.[0-9]{1,3})?$|^1\.[0-9]{0,2}[1-9]$"

Factor = Annotated[
    str,
    BeforeValidator(str),
    IntOrString(),
    Len(1, 10),
    Rule(
        f"type(self) == string ? self.matches({cel_text(_FACTOR)}) : self > 1 && self < 1000000",
        'write a number above 1 and below a million, in quotes where it has a fraction: 3, or "1.5"',
    ),
]


class NumericsAction(str, Enum):
    """What follows an unsound step. All ranks do the same."""

    SKIP = "skip"
    """Its update is left out; the step counts."""
    ROLLBACK = "rollback"
    """Everything goes back to the last checkpoint, in the pods that there are, and on without the step's batch."""
    STOP = "stop"
    """The job fails; its last checkpoint is older than the step."""


class Spike(Model):
    """What is too much, as a multiple of its median over the last 128 sound steps."""

    loss: Factor | None = None
    """Of the loss. Left out: a finite loss is sound."""
    gradient_norm: Factor | None = None
    """Of the norm of the global batch's gradient. Left out: a finite norm is sound."""


class Numerics(Model):
    """Watches the loss and the gradient's norm of each step: neither may be NaN or infinite, nor spike."""

    action: NumericsAction
    """What follows."""
    spike: Spike | None = None
    """From where on a value is a spike. Left out: spikes are not looked for."""
    limit: Annotated[int, Ge(1), Le(1000)] | None = None
    """So many steps within 1,000 are answered by `action`; the next one fails the job. Left out: 10."""
