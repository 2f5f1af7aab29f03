"""What the API server itself refuses about a TrainingJob, in CEL, each with a message that says how to mend it.

Rules about several fields stand on their parent, and so do rules about changes: a field's own rule does not run when
the field appears or goes. Rules about changes of an admitted job stand on the whole object, so that they can read the
status.

All of them run at every write, at a status write too, and what costs the API server is each look into an object: it
builds a map of all the fields that the object's schema has, twice for a field that is there. So a rule about one field
stands on that field, and the others first ask what mostly settles them. `a || b` is true in CEL when one side is, even
if the other is an error: `!has(self.a.b) || !has(self.a)` needs no third look for a job that has `a` without `b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.api.common import above_zero
from muster.api.names import ConditionType
from muster.api.schema import Reason, Rule

_ADMITTED: Final = "{it}.status.conditions.exists(c, c.type == 'TYPE' && c.status == 'True')".replace(
    "TYPE", ConditionType.ADMITTED.value
)
"""CEL: `it` (self or oldSelf) is a job that is admitted; an error without conditions."""

FROZEN_WHILE_ADMITTED: Final = (
    "queue",
    "image",
    "command",
    "args",
    "workers.spares",
    "workers.gpusPerWorker",
    "workers.gpuType",
    "workers.processesPerWorker",
    "workers.resources",
    "parallelism",
    "topology",
    "preemptible",
    "checkpoint.uri",
    "tracking",
    "env",
    "envFrom",
    "volumeMounts",
    "nodeSelector",
    "tolerations",
    "serviceAccountName",
)
"""Fields of the spec that keep their value while the job is admitted and not suspended."""


FROZEN_AT_THE_END: Final = (
    "queue",
    "image",
    "command",
    "args",
    "workers",
    "parallelism",
    "topology",
    "capacity",
    "preemptible",
    "disruptionBudget",
    "priorityClassName",
    "checkpoint",
    "restart",
    "hang",
    "tracking",
    "numerics",
    "health",
    "readyTimeout",
    "maxRuntime",
    "window",
    "deadline",
    "budget",
    "suspend",
    "env",
    "envFrom",
    "volumes",
    "volumeMounts",
    "podTemplate",
    "nodeSelector",
    "tolerations",
    "imagePullSecrets",
    "serviceAccountName",
    "terminationGracePeriod",
)
"""Fields of the spec that do nothing any more once the job has ended: all but `ttlAfterFinished`."""


REQUIRED: Final = frozenset({"queue", "image", "command", "workers"})
"""Fields of the spec that are always there, by the schema or by its default."""


def _same(path: str) -> str:
    """CEL: the field is what it was, or is absent as it was. (`.?` would be shorter, but its cost has no bound.)"""
    names, checks = path.split("."), []
    for depth in range(1, len(names) + 1):
        if names[0] in REQUIRED and depth == 1:
            continue
        new, old = (f"{root}.spec.{'.'.join(names[:depth])}" for root in ("self", "oldSelf"))
        checks.append((f"has({new})", f"has({old})"))
    new, old = f"self.spec.{path}", f"oldSelf.spec.{path}"
    if not checks:
        return f"{new} == {old}"
    has_new, has_old = (" && ".join(side) for side in zip(*checks, strict=True))
    return f"(({has_new}) ? ({has_old}) && {new} == {old} : !({has_old}))"


def _frozen(paths: Sequence[str]) -> Rule:
    """One rule for all fields: which of them it was is only asked of an edit that is refused. Most status writes end at
    the first question, and those of a running job at the comparison of the specs."""
    which = " : ".join(f"!({_same(path)}) ? '{path}'" for path in paths[:-1]) + f" : '{paths[-1]}'"
    way_out = (
        "cannot change while the job is admitted: set spec.suspend to true, change it, and set suspend to false again; "
        "the run goes on from the last checkpoint at its checkpoint.uri"
    )
    return Rule(
        f"!has(oldSelf.status) || !{_ADMITTED.format(it='self')} || !{_ADMITTED.format(it='oldSelf')} || "
        "self.spec == oldSelf.spec || "
        "!has(self.status) || !has(self.status.conditions) || !has(oldSelf.status.conditions) || "
        f"self.spec.suspend || ({' && '.join(map(_same, paths))})",
        f"a field of the spec {way_out}",
        field_path=".spec",
        reason=Reason.FORBIDDEN,
        message_cel=f"({which}) + ' {way_out}'",
    )


def _ended(paths: Sequence[str]) -> Rule:
    """A job that has ended does not start again, so an edit that wants it to is refused. A write of any other job ends
    at the first question."""
    return Rule(
        "!has(oldSelf.status.finishedAt) || !has(oldSelf.status) || self.spec == oldSelf.spec || "
        f"({' && '.join(map(_same, paths))})",
        "the job has ended, and nothing starts it again: delete it and apply it as you want it; only ttlAfterFinished "
        "can still change",
        field_path=".spec",
        reason=Reason.FORBIDDEN,
    )


_NAME_TOO_LONG: Final = "the name has more than 63 characters, but a Service and labels carry it: choose a shorter one"
_NAME_OF_SERVICE: Final = (
    "a Service carries the name of the job: use lower-case letters, digits and dashes, a letter first and no dash at "
    "the end"
)

_ELASTIC: Final = "((has({it}.min) ? {it}.min : {it}.replicas) < (has({it}.max) ? {it}.max : {it}.replicas))"

JOB_RULES: Final = (
    Rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
        f"{_NAME_OF_SERVICE}, 63 of them at most",
        field_path=".metadata.name",
        message_cel=f"self.metadata.name.size() > 63 ? '{_NAME_TOO_LONG}' : '{_NAME_OF_SERVICE}'",
    ),
    _frozen(FROZEN_WHILE_ADMITTED),
    Rule(
        "self.spec.workers.replicas == oldSelf.spec.workers.replicas || self.spec.suspend || oldSelf.spec.suspend || "
        f"!has(oldSelf.status) || !has(oldSelf.status.conditions) || !{_ADMITTED.format(it='oldSelf')} || "
        f"{_ELASTIC.format(it='self.spec.workers')}",
        "this job is not elastic, so its number of workers cannot change while it is admitted: set spec.suspend to "
        "true, change workers.replicas, and set suspend to false again; or set workers.min below workers.max",
        field_path=".spec.workers.replicas",
        reason=Reason.FORBIDDEN,
    ),
    _ended(FROZEN_AT_THE_END),
)

READY_TIMEOUT_RULE: Final = above_zero(
    "readyTimeout is 0, so the gang could never start in time: give it some, like 30m, or leave it out"
)

MAX_RUNTIME_RULE: Final = above_zero(
    "maxRuntime is 0, so the job would end before it has trained: give it some, like 12h, or leave it out for no limit"
)

GRACE_RULE: Final = above_zero(
    "with no time at all no checkpoint is saved when the job is told to stop, and others get its room before its "
    "processes have ended: give some, like 2m, or leave it out for 2m"
)

INTERVAL_RULE: Final = above_zero(
    "no time at all is no interval, and nothing would be saved by time: give some, like 10m, or leave it out; "
    "everySteps: 1 saves at each step"
)

COMMAND_RULE: Final = Rule("self[0] != ''", "the command begins with nothing: write what is run first, like python")

RESTART_WINDOW_RULE: Final = above_zero(
    "within no time at all no failure counts, and limits nothing: give it some, like 1d, or leave window out for 1d"
)

DISRUPTION_WINDOW_RULE: Final = above_zero(
    "within no time at all no preemption counts, and the budget limits nothing: give it some, like 1d, or leave window "
    "out for 1d"
)

_SLICE: Final = "self.topology.slices[0].workers"
_WHOLE_SLICES: Final = (
    f"(self.workers.replicas % {_SLICE} == 0 && "
    f"(!has(self.workers.min) || self.workers.min % {_SLICE} == 0) && "
    f"(!has(self.workers.max) || self.workers.max % {_SLICE} == 0))"
)
_REPLICA: Final = "self.parallelism.workersPerReplica"
_STEP: Final = (
    f"(has(self.workers.step) ? self.workers.step : has(self.parallelism) && has({_REPLICA}) ? {_REPLICA} : 1)"
)
_STEP_OF_SLICES: Final = f"(!{_ELASTIC.format(it='self.workers')} || {_STEP} % {_SLICE} == 0)"
_WHOLE_REPLICAS: Final = (
    f"(self.workers.replicas % {_REPLICA} == 0 && "
    f"(!has(self.workers.min) || self.workers.min % {_REPLICA} == 0) && "
    f"(!has(self.workers.max) || self.workers.max % {_REPLICA} == 0))"
)
_STEP_OF_REPLICAS: Final = f"(!has(self.workers.step) || self.workers.step % {_REPLICA} == 0)"
_GANG_OF_REPLICAS: Final = (
    "the gang does not divide into whole replicas of the model: give workers.replicas, min and max that are multiples "
    "of parallelism.workersPerReplica"
)
_GROWS_BY_REPLICAS: Final = (
    "an elastic gang grows and shrinks by whole replicas of the model: give workers.step a multiple of "
    "parallelism.workersPerReplica, or leave step out for one replica at a time"
)
_GANG_OF_SLICES: Final = (
    "the gang does not divide into whole slices: give replicas, min and max that are multiples of "
    "topology.slices[0].workers"
)
_GROWS_BY_SLICES: Final = (
    "an elastic gang with slices grows and shrinks by whole slices: give workers.step a multiple of "
    "topology.slices[0].workers"
)

SPEC_RULES: Final = (
    Rule(
        "!has(self.disruptionBudget) || !has(self.preemptible) || self.preemptible",
        "a job that is not preemptible is never preempted, so it needs no disruptionBudget: leave one of the two out",
        field_path=".disruptionBudget",
    ),
    Rule(
        "!has(self.numerics) || self.numerics.action != 'rollback' || has(self.checkpoint)",
        "a rollback needs a checkpoint to go back to: give checkpoint.uri, or choose skip or stop",
        field_path=".numerics",
    ),
    Rule(
        f"!has(self.topology.slices) || !has(self.topology) || ({_WHOLE_SLICES} && {_STEP_OF_SLICES})",
        f"{_GANG_OF_SLICES}, and to workers.step one too where the gang is elastic",
        field_path=".topology.slices",
        message_cel=f"{_WHOLE_SLICES} ? '{_GROWS_BY_SLICES}' : '{_GANG_OF_SLICES}'",
    ),
    Rule(
        f"!has({_REPLICA}) || !has(self.parallelism) || ({_WHOLE_REPLICAS} && {_STEP_OF_REPLICAS})",
        f"{_GANG_OF_REPLICAS}, and workers.step one too where it is given",
        field_path=".parallelism.workersPerReplica",
        message_cel=f"{_WHOLE_REPLICAS} ? '{_GROWS_BY_REPLICAS}' : '{_GANG_OF_REPLICAS}'",
    ),
    Rule(
        f"!has(self.capacity.base) || !has(self.capacity) || {_ELASTIC.format(it='self.workers')}",
        "a gang of one size has no workers beyond a base: give a workers.min below replicas, or leave base out",
        field_path=".capacity.base",
    ),
    Rule(
        "!has(self.capacity.base) || !has(self.capacity) || !has(self.workers.partial) || self.workers.partial",
        "a gang with a base starts as soon as that has room, with what there is beyond it: leave partial out, or base",
        field_path=".workers.partial",
    ),
)

WORKERS_RULES: Final = (
    Rule(
        "!has(self.min) || !has(self.max) || self.min <= self.max",
        "min is greater than max: give min <= replicas <= max",
        field_path=".min",
    ),
    Rule(
        "!has(self.min) || self.min <= self.replicas",
        "min is greater than replicas: give min <= replicas <= max",
        field_path=".min",
    ),
    Rule(
        "!has(self.max) || self.replicas <= self.max",
        "replicas is greater than max: give min <= replicas <= max",
        field_path=".replicas",
    ),
    Rule(
        f"!has(self.step) || {_ELASTIC.format(it='self')}",
        "step is the size by which an elastic gang grows and shrinks: give min below max too, or leave step out",
        field_path=".step",
    ),
    Rule(
        "!has(self.step) || (((self.replicas - (has(self.min) ? self.min : self.replicas)) % self.step == 0) && "
        "(((has(self.max) ? self.max : self.replicas) - self.replicas) % self.step == 0))",
        "the gang has min workers and a multiple of step: give replicas and max that are min plus whole steps",
        field_path=".step",
    ),
    Rule(
        "!has(self.partial) || !self.partial || (has(self.min) && self.min < self.replicas)",
        "partial lets the gang start with fewer workers than replicas: say with how many at least, in min",
        field_path=".partial",
    ),
    Rule(
        f"!has(self.shrinkAfter) || {_ELASTIC.format(it='self')}",
        "shrinkAfter says when an elastic gang goes on without lost workers: give min below max too, or leave it out",
        field_path=".shrinkAfter",
    ),
    Rule(
        f"!has(self.spares) || self.spares == 0 || !{_ELASTIC.format(it='self')}",
        "an elastic gang goes on with fewer workers when nodes break: leave spares out, or give the gang one size",
        field_path=".spares",
    ),
    Rule(
        "!has(self.gpuType) || (has(self.gpusPerWorker) && self.gpusPerWorker > 0)",
        "gpuType without GPUs: say how many in gpusPerWorker, or leave gpuType out for a gang on CPUs",
        field_path=".gpuType",
    ),
    Rule(
        "!has(self.processesPerWorker) || !has(self.gpusPerWorker) || self.gpusPerWorker == 0 || "
        "self.processesPerWorker <= self.gpusPerWorker",
        "more processes than GPUs: give processesPerWorker <= gpusPerWorker, or leave it out for one process a GPU",
        field_path=".processesPerWorker",
    ),
)

CLOSENESS_RULES: Final = (
    Rule(
        "!has(self.mode) || self.mode != 'required' || has(self.level)",
        "mode required needs a level: say which domain must hold all workers, for example level: rack",
        field_path=".level",
        reason=Reason.REQUIRED,
    ),
    Rule(
        "!has(self.mode) || self.mode != 'unconstrained' || !has(self.level)",
        "a level has no meaning with mode unconstrained: leave it out, or use preferred or required",
        field_path=".level",
    ),
)

TOPOLOGY_RULES: Final = (
    *CLOSENESS_RULES,
    Rule(
        "!has(self.slices) || self.slices.size() < 2 || (self.slices[0].workers % self.slices[1].workers == 0 && "
        "self.slices[0].workers > self.slices[1].workers && "
        "(self.slices.size() < 3 || (self.slices[1].workers % self.slices[2].workers == 0 && "
        "self.slices[1].workers > self.slices[2].workers)) && "
        "(self.slices.size() < 4 || (self.slices[2].workers % self.slices[3].workers == 0 && "
        "self.slices[2].workers > self.slices[3].workers)))",
        "slices nest, the widest first: give each a number of workers that divides the number before it",
        field_path=".slices",
    ),
    Rule(
        "!has(self.slices) || self.slices.all(a, self.slices.exists_one(b, b.level == a.level))",
        "two slices share a level: give each a level of its own, the narrower one further down",
        field_path=".slices",
    ),
)

CAPACITY_RULES: Final = (
    Rule(
        "!has(self.fallbackAfter) || self.order.size() > 1",
        "fallbackAfter says when the next kind is taken: name two kinds or more in order, or leave fallbackAfter out",
        field_path=".fallbackAfter",
    ),
    Rule(
        "!has(self.prefer) || self.order.size() > 1",
        "prefer chooses among kinds: name two kinds or more in order, or leave prefer out",
        field_path=".prefer",
    ),
    Rule(
        "!has(self.base) || self.order.size() == 1",
        "with a base, order is where the workers beyond it run: name one kind there, or leave base out",
        field_path=".order",
    ),
    Rule(
        "!has(self.base) || self.order.size() != 1 || self.order[0] != self.base",
        "the workers beyond the base would be on the base's own kind: name another one in order, or leave base out",
        field_path=".base",
    ),
)

ENCRYPTION_RULES: Final = (
    Rule(
        "!has(self.keyId) || self.type == 'SSE-KMS'",
        "keyId names a key of a key server: say type: SSE-KMS, or leave keyId out",
        field_path=".keyId",
    ),
)

CHECKPOINT_RULES: Final = (
    Rule(
        "!has(self.load) || has(self.from)",
        "load says what is taken from another run's checkpoint: name that checkpoint in from, or leave load out",
        field_path=".load",
    ),
    Rule(
        "!has(self.from) || (self.from != self.uri && !self.from.startsWith(self.uri + '@'))",
        "from is this job's own uri, which it resumes from anyway: leave from out, or give the job a uri of its own",
        field_path=".from",
    ),
)
