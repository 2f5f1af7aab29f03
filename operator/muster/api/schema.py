"""Marks that a field's type carries for the CRD, beside what pydantic itself checks.

Only `muster.api.crd` reads them. Lengths and bounds are `annotated_types`' own (`Len`, `Ge`, `Le`), which pydantic
enforces on reading too; the marks here say what only an API server can enforce or show.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(str, Enum):
    """How the API server words a broken rule. The values are Kubernetes' own."""

    INVALID = "FieldValueInvalid"
    FORBIDDEN = "FieldValueForbidden"
    REQUIRED = "FieldValueRequired"


@dataclass(frozen=True)
class Rule:
    """A CEL rule (`x-kubernetes-validations`).

    Attributes:
        cel: the rule; true means right. `self` is the value that carries it.
        message: what is wrong and how to mend it.
        message_cel: the message as a CEL expression, where it depends on the value; `message` if that fails.
        field_path: which field below `self` the message points at, like `.workers.replicas`.
    """

    cel: str
    message: str
    field_path: str = ""
    reason: Reason = Reason.INVALID
    message_cel: str = ""


@dataclass(frozen=True)
class OneOf:
    """A text that is one of `values`. Much cheaper for the API server than a rule."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class MapList:
    """A list whose items are told apart by `keys` (server-side apply merges it item by item)."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Atomic:
    """An object that is only ever written whole: the API server keeps one managed field for it, not one a field."""


@dataclass(frozen=True)
class SetList:
    """A list of scalars without repetition."""


@dataclass(frozen=True)
class Int64:
    """A whole number that may go beyond 2^31."""


@dataclass(frozen=True)
class IntOrString:
    """Written as a number or as text, as Kubernetes' quantities are.

    In lists and maps no `Rule` may look at the text: up to 1.33 Kubernetes takes it for as long as a request may be
    when it estimates what a rule costs, whatever its `maxLength`, and refuses the CRD. Such a field has a pattern, and
    who has mistyped it is shown the pattern: let it begin with what may be written.

    Attributes:
        pattern: of the text; "" for any.
        least: of the number.
    """

    pattern: str = ""
    least: int | None = None


@dataclass(frozen=True)
class Open:
    """An object of Kubernetes' own that is kept as it is written; the API server judges it when the pods are made."""


@dataclass(frozen=True)
class SchemaDefault:
    """A default that the API server writes into the stored object.

    Only for fields that no template may set: everything else gets its default in `muster.api.effective`.
    """

    value: object
