"""The parts of a pod that a TrainingJob takes over in Kubernetes' own form."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Final, Self

from annotated_types import Len
from pydantic import AfterValidator, model_validator

from muster.api.common import (
    Count,
    Label63,
    LabelKey,
    Labels,
    Model,
    ObjectName,
    OpenModel,
    QualifiedName,
    Quantity,
    keys,
    matches,
)
from muster.api.names import GPU_RESOURCE
from muster.api.schema import Open, Rule
from muster_protocol import env as protocol_env

OPERATOR_ENV: Final = tuple(
    sorted(
        value
        for name, value in vars(protocol_env).items()
        if name.isupper() and isinstance(value, str) and value.startswith("MUSTER_")
    )
)
"""Environment variables that the operator and the launcher set, so a job may not."""

DEEPEST: Final = 64
"""Levels of mappings and lists in a part that may be anything; a PodSpec has a dozen. With hundreds of them what writes
it would fail, in the midst of other jobs."""


def shallow(part: dict[str, Any]) -> dict[str, Any]:
    """`part`, unless it is too deep."""
    level: list[Any] = [part]
    for _ in range(DEEPEST):
        level = [item for one in level if isinstance(one, (dict, list)) for item in _inside(one)]
        if not level:
            return part
    raise ValueError(f"has more than {DEEPEST} levels of mappings and lists in each other, which no pod has")


def _inside(one: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


EnvName = Annotated[
    str,
    Len(1, 256),
    matches(
        "^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        "use letters, digits, _, - and . for the name of an environment variable, not starting with a digit",
    ),
]
FilePath = Annotated[str, Len(1, 1024)]
_NOT_MUSTERS: Final = Rule(
    "!self.matches('^/+muster/*$')",
    "/muster has the runtime that Muster brings along, and a volume there would hide it: mount it elsewhere",
)


class MountPropagation(str, Enum):
    """As in Kubernetes."""

    NONE = "None"
    HOST_TO_CONTAINER = "HostToContainer"
    BIDIRECTIONAL = "Bidirectional"


class TolerationOperator(str, Enum):
    """As in Kubernetes."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(str, Enum):
    """As in Kubernetes."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class KeyOfObject(Model):
    """One key of a ConfigMap or Secret in the job's namespace."""

    name: ObjectName
    """Name of the ConfigMap or Secret."""
    key: Annotated[str, Len(1, 253)]
    """The key within it."""
    optional: bool | None = None
    """When true, the pod starts also without it."""


class PodField(Model):
    """A field of the pod itself."""

    field_path: Annotated[str, Len(1, 253)]
    """Such as `metadata.name` or `status.podIP`."""
    api_version: Annotated[str, Len(0, 63)] | None = None
    """Version of the schema that `fieldPath` is written in; `v1`."""


class ContainerResource(Model):
    """A resource request or limit of the container itself."""

    resource: Annotated[str, Len(1, 253)]
    """Such as `limits.memory`."""
    container_name: Annotated[str, Len(0, 63)] | None = None
    """The container; the training container when left out."""
    divisor: Quantity | None = None
    """What the value is divided by, like `1Mi`."""


class EnvSource(Model):
    """Where an environment variable's value comes from. Exactly one of the fields."""

    RULES = (
        Rule(
            "[has(self.configMapKeyRef), has(self.secretKeyRef), has(self.fieldRef), has(self.resourceFieldRef)]"
            ".filter(x, x).size() == 1",
            "name exactly one source: configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef",
        ),
    )

    config_map_key_ref: KeyOfObject | None = None
    """A key of a ConfigMap."""
    secret_key_ref: KeyOfObject | None = None
    """A key of a Secret."""
    field_ref: PodField | None = None
    """A field of the pod."""
    resource_field_ref: ContainerResource | None = None
    """A resource of the container."""


class EnvVar(Model):
    """One environment variable."""

    RULES = (
        Rule("!(has(self.value) && has(self.valueFrom))", "give either value or valueFrom, not both"),
        Rule(
            f"!(self.name in [{', '.join(repr(name) for name in (*OPERATOR_ENV, *protocol_env.TORCHRUN))}])",
            "Muster sets this variable itself; take it out of env",
            field_path=".name",
        ),
    )

    name: EnvName
    """Name of the variable."""
    value: Annotated[str, Len(0, 32768)] | None = None
    """Its value. Quote numbers and booleans: YAML would not make them text."""
    value_from: EnvSource | None = None
    """Where the value comes from, in the place of `value`."""


class ObjectRef(Model):
    """A ConfigMap or Secret in the job's namespace."""

    name: ObjectName
    """Its name."""
    optional: bool | None = None
    """When true, the pod starts also without it."""


class EnvFromSource(Model):
    """All keys of a ConfigMap or Secret as environment variables."""

    RULES = (Rule("has(self.configMapRef) != has(self.secretRef)", "name exactly one of configMapRef and secretRef"),)

    prefix: Annotated[str, Len(0, 256)] | None = None
    """Put before every key."""
    config_map_ref: ObjectRef | None = None
    """The ConfigMap."""
    secret_ref: ObjectRef | None = None
    """The Secret."""


class Volume(OpenModel):
    """A volume of the pod, in any form that Kubernetes knows."""

    name: Label63
    """Name that `volumeMounts` refers to."""

    @model_validator(mode="after")
    def _is_shallow(self) -> Self:
        shallow(self.model_extra or {})
        return self


class VolumeMount(Model):
    """Where the training container sees a volume."""

    name: Label63
    """Name of the volume."""
    mount_path: Annotated[FilePath, _NOT_MUSTERS]
    """Folder in the container."""
    sub_path: FilePath | None = None
    """Folder in the volume; its root when left out."""
    sub_path_expr: FilePath | None = None
    """As `subPath`, with $(VARIABLES) of the environment."""
    read_only: bool | None = None
    """When true, the container cannot write there."""
    mount_propagation: MountPropagation | None = None
    """How mounts pass between host and container."""


class Toleration(Model):
    """A taint that the pods bear."""

    key: LabelKey | None = None
    """The taint's key; every taint when left out, with `operator: Exists`."""
    operator: TolerationOperator | None = None
    """Exists, or Equal (the default)."""
    value: Annotated[str, Len(0, 63)] | None = None
    """The taint's value, with `operator: Equal`."""
    effect: TaintEffect | None = None
    """The taint's effect; all of them when left out."""
    toleration_seconds: Count | None = None
    """For how long a NoExecute taint is borne; for ever when left out."""


class NameRef(Model):
    """An object in the job's namespace."""

    name: ObjectName
    """Its name."""


Resources = Annotated[dict[QualifiedName, Quantity], Len(0, 16), keys()]


class WorkerResources(Model):
    """What each worker's training container asks for, as in a pod. GPUs are asked for by `gpusPerWorker`."""

    RULES = tuple(
        Rule(
            f"!has(self.{kind}) || !('{GPU_RESOURCE}' in self.{kind})",
            "GPUs are asked for by workers.gpusPerWorker; take them out of resources",
            field_path=f".{kind}",
        )
        for kind in ("requests", "limits")
    )

    requests: Resources | None = None
    """What is reserved: `cpu`, `memory`, `ephemeral-storage`, or an extended resource other than the GPUs."""
    limits: Resources | None = None
    """What it may use at most. A resource with a limit and no request reserves the limit."""


class PodTemplateMetadata(Model):
    """Labels and annotations for the pods."""

    RULES = (
        Rule(
            "!has(self.labels) || self.labels.all(key, !key.startsWith('muster.dev/'))",
            "labels of muster.dev/ are Muster's own; use another prefix",
            field_path=".labels",
        ),
    )

    labels: Labels | None = None
    """Labels; those of `muster.dev/` cannot be set."""
    annotations: Annotated[dict[QualifiedName, Annotated[str, Len(0, 65536)]], Len(0, 64), keys()] | None = None
    """Annotations."""


class PodTemplate(Model):
    """Laid over the pods that Muster makes, by a strategic merge; the training container is named `trainer`."""

    metadata: PodTemplateMetadata | None = None
    """Labels and annotations of the pods."""
    spec: Annotated[dict[str, Any], Open(), AfterValidator(shallow)] | None = None
    """A part of a PodSpec. It may set neither node, scheduler, restart policy nor priority: these are Muster's. A
    worker has ended when the container `trainer` has: one beside it that goes on is removed with the pod, and with its
    log, at the end of the job; a sidecar in `initContainers` (`restartPolicy: Always`) ends by itself."""
