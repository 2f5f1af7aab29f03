"""What a queue's `defaultTemplate` fills in where a job says nothing. Pure."""

from __future__ import annotations

from typing import Final

from muster.api.jobparts import DefaultTopology, JobDefaults, JobTopology
from muster.api.numerics import NumericsAction
from muster.api.trainingjob import TrainingJobSpec

_WHOLE: Final = (
    "priority_class_name",
    "capacity",
    "preemptible",
    "disruption_budget",
    "restart",
    "hang",
    "health",
    "tracking",
    "numerics",
    "ready_timeout",
    "max_runtime",
    "termination_grace_period",
    "ttl_after_finished",
    "image_pull_secrets",
)
"""Fields that are the job's or the queue's, never a mixture."""


def used(spec: TrainingJobSpec, template: JobDefaults | None) -> JobDefaults | None:
    """The part of a template that the job leaves to it, or None."""
    if template is None:
        return None
    template = template if _may_go_back(spec, template) else template.model_copy(update={"numerics": None})
    said_env = {entry.name for entry in spec.env or ()}
    found = JobDefaults(
        **{name: getattr(template, name) for name in _WHOLE if getattr(spec, name) is None},
        topology=template.topology if _leaves_closeness(spec.topology) else None,
        node_selector={
            key: value for key, value in (template.node_selector or {}).items() if key not in (spec.node_selector or {})
        }
        or None,
        tolerations=tuple(each for each in template.tolerations or () if each not in (spec.tolerations or ())) or None,
        env=tuple(entry for entry in template.env or () if entry.name not in said_env) or None,
    )
    return None if found == JobDefaults() else found


def filled(spec: TrainingJobSpec, template: JobDefaults | None) -> TrainingJobSpec:
    """The job's spec with a template beneath it."""
    defaults = used(spec, template)
    if defaults is None:
        return spec
    update: dict[str, object] = {name: value for name in _WHOLE if (value := getattr(defaults, name)) is not None}
    if defaults.topology is not None:
        update["topology"] = _topology(spec.topology, defaults.topology)
    if defaults.node_selector is not None:
        update["node_selector"] = {**defaults.node_selector, **(spec.node_selector or {})}
    if defaults.tolerations is not None:
        update["tolerations"] = (*(spec.tolerations or ()), *defaults.tolerations)
    if defaults.env is not None:
        update["env"] = (*defaults.env, *(spec.env or ()))
    return spec.model_copy(update=update)


def _may_go_back(spec: TrainingJobSpec, template: JobDefaults) -> bool:
    """Whether the job has what the template's `numerics` needs."""
    rolls_back = template.numerics is not None and template.numerics.action is NumericsAction.ROLLBACK
    return not rolls_back or spec.checkpoint is not None


def _leaves_closeness(topology: JobTopology | None) -> bool:
    return topology is None or (topology.mode is None and topology.level is None)


def _topology(own: JobTopology | None, default: DefaultTopology) -> JobTopology:
    return (own or JobTopology()).model_copy(update={"mode": default.mode, "level": default.level})
