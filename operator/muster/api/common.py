"""What the kinds have in common: metadata, conditions, and the types of their fields."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Annotated, Any, ClassVar, Final, Self

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel

from muster.api.schema import Int64, IntOrString, OneOf, Rule
from muster_protocol.durations import DURATION_PATTERN, parse_duration
from muster_protocol.uris import S3_RUN_PATTERN

GROUP: Final = "muster.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

LABEL_PATTERN: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
QUANTITY_PATTERN: Final = (
    r"^(4|500m|64Gi|\+?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[munkMGTPE]|[eE][-+]?0*([12]?[0-9]|30))?)$"
)
"""Of no more than what `quantities.parse` reads."""


class Model(BaseModel):
    """Read from the API server and written back: frozen, camelCase on the wire, unknown fields ignored."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    """CEL rules on objects of this model."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, alias_generator=to_camel)

    def to_raw(self) -> dict[str, Any]:
        """As the API server takes it: camelCase, without the fields that are not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OpenModel(Model):
    """As `Model`, but keeps the fields that it does not know."""

    model_config = ConfigDict(extra="allow")


def cel_text(pattern: str) -> str:
    """`pattern` as a CEL string literal."""
    return "'" + pattern.replace("\\", "\\\\").replace("'", "\\'") + "'"


def matches(pattern: str, message: str) -> Rule:
    """A pattern whose message says more than the pattern."""
    return Rule(f"self.matches({cel_text(pattern)})", message)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a moment needs a time zone, like 2026-12-01T08:00:00Z")
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("it lies outside of the calendar in UTC") from None


def _duration(text: str) -> str:
    parse_duration(text)
    return text


def _duration_or_auto(text: str) -> str:
    return text if text == "auto" else _duration(text)


def clip(length: int) -> BeforeValidator:
    """Cuts text that is longer."""

    def cut(value: object) -> object:
        return value[: length - 3] + "..." if isinstance(value, str) and len(value) > length else value

    return BeforeValidator(cut)


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as Kubernetes writes times."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


Timestamp = Annotated[datetime, AfterValidator(_utc), PlainSerializer(format_time, return_type=str)]
"""A moment; written in UTC with whole seconds."""


def _of_a_clock(moment: datetime) -> datetime:
    if not 1970 <= moment.year < 9000:
        raise ValueError("no clock has shown this moment")
    return moment


ClockTime = Annotated[Timestamp, AfterValidator(_of_a_clock)]
"""A moment that has come. What is added to it or taken away stays within the calendar."""

Message = Annotated[str, clip(4096), Len(0, 4096)]
"""Text that the operator writes for people. Cut, not refused, when it is too long."""
ShortMessage = Annotated[str, clip(512), Len(0, 512)]

Label63 = Annotated[
    str,
    Len(1, 63),
    matches(LABEL_PATTERN, "use 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"),
]
"""A DNS label."""

ObjectName = Annotated[
    str,
    Len(1, 253),
    matches(
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "use the name of an object: lower-case letters, digits, dashes and dots",
    ),
]
"""The name of another object (DNS subdomain)."""

LabelKey = Annotated[
    str,
    Len(1, 317),
    matches(
        r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "use a label key such as topology.kubernetes.io/zone",
    ),
]

LONGEST_KEY: Final = 317
"""Characters of a key of Kubernetes' maps: 253 of a prefix, and 63 of a name."""
QualifiedName = Annotated[str, Len(1, LONGEST_KEY)]
"""A key as in Kubernetes' maps: a name, with or without `PREFIX/`."""


def keys(longest: int = LONGEST_KEY) -> Rule:
    """That none of a map's keys is empty, as from a variable that is not set, or too long: no schema says that."""
    return Rule(
        f"self.all(key, key.size() > 0 && key.size() <= {longest})",
        f"a key is empty, or longer than {longest} characters: name it, or take the entry out",
    )


Labels = Annotated[dict[QualifiedName, Annotated[str, Len(0, 63)]], Len(0, 64), keys()]

Duration = Annotated[
    str,
    Len(1, 32),
    Rule(
        f"self.matches({cel_text(DURATION_PATTERN)})",
        "write a duration as days, hours, minutes and seconds in this order, like 90s, 10m, 1h30m or 2d",
    ),
    AfterValidator(_duration),
]
"""`90s`, `10m`, `1h30m`, `2d`. Read by `muster_protocol.durations.parse_duration`. What an older CRD took, or stands in
a status, which has no rules, is found when the object is read, and not where it is used."""


def above_zero(message: str) -> Rule:
    """That a duration is longer than nothing. What is no duration at all is another rule's."""
    return Rule("!self.matches('^(0+[dhms])+$')", message)


DurationOrAuto = Annotated[
    str,
    Len(1, 32),
    Rule(
        f"self == 'auto' || self.matches({cel_text(DURATION_PATTERN)})",
        "write auto, or a duration as days, hours, minutes and seconds in this order, like 90s, 10m, 1h30m or 2d",
    ),
    AfterValidator(_duration_or_auto),
]
"""A `Duration`, or `auto`."""

Quantity = Annotated[
    str,
    BeforeValidator(str),
    IntOrString(QUANTITY_PATTERN, least=0),
    Len(1, 32),
]
"""A Kubernetes quantity: `4`, `500m`, `64Gi`."""

LONGEST_URI = 1024
"""Characters."""

S3Uri = Annotated[
    str,
    Len(1, LONGEST_URI),
    matches(
        S3_RUN_PATTERN,
        "write s3://BUCKET/PREFIX: a bucket has 3 to 63 lower-case letters, digits, dots and dashes, and the prefix "
        "neither spaces nor ? nor #, no '//', no folder '.' or '..', and no '@' behind its last '/'",
    ),
]

Step = Annotated[int, Ge(0), Int64()]
"""Number of a training step."""
Count = Annotated[int, Ge(0), Le(2**31 - 1)]


class ObjectMeta(Model):
    """What the operator reads of `metadata`."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Condition(Model):
    """One aspect of the object's state, for programs."""

    type: Annotated[str, Len(1, 64)]
    """Which aspect; the types are listed below this table of fields."""
    status: Annotated[str, OneOf(("True", "False", "Unknown"))]
    """True, False or Unknown."""
    reason: Annotated[str, Len(1, 128)]
    """One CamelCase word for why, meant for programs."""
    message: Message = ""
    """What happened and, when something is wrong, how to mend it."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: Annotated[int, Ge(0), Int64()] = 0
    """The `metadata.generation` that the condition speaks of."""


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == type_), None)


def set_condition(conditions: Iterable[Condition], new: Condition) -> tuple[Condition, ...]:
    """`conditions` with `new` in the place of the one of its type; the transition time stays when the status does."""
    result, found = [], False
    for old in conditions:
        if old.type != new.type:
            result.append(old)
            continue
        found = True
        same = old.status == new.status
        result.append(new.model_copy(update={"last_transition_time": old.last_transition_time}) if same else new)
    return tuple(result if found else [*result, new])


class Resource(Model):
    """An object of one of our kinds. `from_raw` reads it, `to_raw` writes it."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta

    @classmethod
    def from_raw(cls, raw: dict[str, Any]) -> Self:
        """Raises pydantic.ValidationError when the object does not fit the model."""
        return cls.model_validate(raw)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace ("" for a cluster-scoped kind) and name."""
        return self.metadata.namespace, self.metadata.name
