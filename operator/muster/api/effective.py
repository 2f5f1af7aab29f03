"""The effective spec of a TrainingJob: what it says, with its queue's and the built-in defaults where it says nothing.

Pure. Fields that a template may set have no default in the schema: the order of precedence is
built-in < queue's template < job, and a default in the stored object could not be told from a user's word.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from muster.api.builtin import (
    AUTO,
    BUDGET_WINDOW_SECONDS,
    CAPACITY_PREFERENCE,
    CHECKPOINT_INTERVAL_SECONDS,
    FALLBACK_SECONDS,
    GRACE_SECONDS,
    NETWORK_LIMIT,
    NUMERICS_LIMIT,
    PREEMPTIBLE,
    READY_TIMEOUT_SECONDS,
    RESTART_BACKOFF_LIMIT_SECONDS,
    RESTART_BACKOFF_SECONDS,
    RESTART_LIMIT,
    RESTART_WINDOW_SECONDS,
    RETENTION_LAST,
    SHRINK_SECONDS,
    STEP,
    STRATEGY,
    TOPOLOGY_MODE,
)
from muster.api.common import Duration
from muster.api.defaults import filled
from muster.api.effective_parts import (
    EffectiveCheckpoint,
    EffectiveHang,
    EffectiveNumerics,
    EffectiveTracking,
    EffectiveWindow,
)
from muster.api.jobparts import (
    Capacity,
    CapacityPreference,
    Hang,
    Health,
    JobDefaults,
    Restart,
    RestartCauses,
    TopologyMode,
)
from muster.api.names import GPU_RESOURCE
from muster.api.numerics import Numerics, Spike
from muster.api.podparts import (
    EnvFromSource,
    EnvVar,
    PodTemplate,
    Toleration,
    Volume,
    VolumeMount,
)
from muster.api.restarts import Group
from muster.api.terms import AtWindowEnd, Window
from muster.api.tracking import Tracking
from muster.api.trainingjob import BestMode, Checkpoint, EncryptionType, Load, Strategy, TrainingJobSpec, Workers
from muster_protocol import env
from muster_protocol.checkpoints.retention import Best, Retention
from muster_protocol.durations import parse_duration

_ENCRYPTIONS: Final = {EncryptionType.SSE_S3: "AES256", EncryptionType.SSE_KMS: "aws:kms"}


@dataclass(frozen=True)
class EffectiveSpec:
    """Every choice made. Durations in seconds.

    Attributes:
        restart_limits: restarts within `restart_window` by group of causes; None for any number.
        min_replicas, max_replicas: bounds of the gang's size; both `replicas` for a job that is not elastic.
        step: the gang has `min_replicas` workers and a multiple of this: by default one replica of the model.
        partial: it may start with fewer than `replicas`.
        shrink_after: that an elastic gang waits for a node in place of a lost one before it goes on with fewer workers.
        spares: workers' room that is kept for the gang beside its own.
        gpu_type: "" for any.
        requests, limits: of the training container, as quantities; GPUs are in both.
        level: name of a topology level; "" for the narrowest that fits.
        slices: (workers, name of the level), widest first.
        balanced: name of the level whose domains get equal numbers, or "".
        capacity: kinds as they are listed; empty for the one that there is, on-demand before reserved before spot. Of
            a gang with a safe base it is the base's.
        beyond: kind of the workers beyond `min_replicas` of an elastic gang with a safe base; "" for all others.
        cheapest: of these the one with the lowest price is preferred, not the one that is listed first.
        fallback_after: until the second kind is taken, and from then on until the third is.
        budget: preemptions allowed within `budget_window`; None for any number.
        priority_class: "" for none, which counts as 0.
        max_runtime, ttl: None for ever, never.
        window: None for any time.
        budget_gpu_hours, budget_cost: None for no limit.
        slower_by: percent; 0: no straggler is named.
        node_selector: as the job writes it; the GPU type is not in it.
    """

    queue: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    replicas: int
    min_replicas: int
    max_replicas: int
    step: int
    partial: bool
    shrink_after: int
    spares: int
    gpus_per_worker: int
    gpu_type: str
    processes_per_worker: int
    requests: dict[str, str]
    limits: dict[str, str]
    strategy: Strategy
    mode: TopologyMode
    level: str
    slices: tuple[tuple[int, str], ...]
    balanced: str
    capacity: tuple[str, ...]
    beyond: str
    cheapest: bool
    fallback_after: int
    preemptible: bool
    budget: int | None
    budget_window: int
    priority_class: str
    checkpoint: EffectiveCheckpoint | None
    restart_limits: dict[Group, int | None]
    restart_window: int
    restart_backoff: int
    hang: EffectiveHang
    numerics: EffectiveNumerics | None
    tracking: EffectiveTracking | None
    preflight: bool
    slower_by: int
    watch_idle: bool
    ready_timeout: int
    max_runtime: int | None
    window: EffectiveWindow | None
    deadline: datetime | None
    budget_gpu_hours: int | None
    budget_cost: int | None
    suspend: bool
    ttl: int | None
    grace: int
    env: tuple[EnvVar, ...]
    env_from: tuple[EnvFromSource, ...]
    volumes: tuple[Volume, ...]
    volume_mounts: tuple[VolumeMount, ...]
    pod_template: PodTemplate | None
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    image_pull_secrets: tuple[str, ...]
    service_account: str

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of capacity that its workers may be on; empty for whichever there is."""
        return (*self.capacity, self.beyond) if self.beyond else self.capacity

    @property
    def elastic(self) -> bool:
        """Whether the gang may have more than one size."""
        return self.min_replicas < self.max_replicas

    def may_have(self, workers: int) -> bool:
        """Whether the gang may have that size."""
        within = self.min_replicas <= workers <= self.max_replicas
        return within and (workers - self.min_replicas) % self.step == 0

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang, spares included."""
        return (self.replicas + self.spares) * self.gpus_per_worker

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.replicas * self.processes_per_worker

    def restart_delay(self, restarts: int) -> int:
        """Seconds to wait before restart number `restarts` (from 1): doubled with each, up to five minutes."""
        delay: int = self.restart_backoff << min(max(restarts - 1, 0), 20)
        return min(delay, max(self.restart_backoff, RESTART_BACKOFF_LIMIT_SECONDS))


def effective_spec(spec: TrainingJobSpec, defaults: JobDefaults | None = None) -> EffectiveSpec:
    """The job's spec over `defaults`, its queue's, over the built-in defaults."""
    spec = filled(spec, defaults)
    workers, topology, restart, budget = spec.workers, spec.topology, spec.restart, spec.disruption_budget
    gpus = workers.gpus_per_worker or 0
    requests, limits = _resources(spec, gpus)
    return EffectiveSpec(
        queue=spec.queue,
        image=spec.image,
        command=spec.command,
        args=spec.args or (),
        replicas=workers.replicas,
        min_replicas=workers.min or workers.replicas,
        max_replicas=workers.max or workers.replicas,
        step=workers.step or (spec.parallelism and spec.parallelism.workers_per_replica) or STEP,
        partial=_partial(workers),
        shrink_after=_seconds(workers.shrink_after, SHRINK_SECONDS),
        spares=workers.spares or 0,
        gpus_per_worker=gpus,
        gpu_type=workers.gpu_type or "",
        processes_per_worker=workers.processes_per_worker or gpus or 1,
        requests=requests,
        limits=limits,
        strategy=(spec.parallelism and spec.parallelism.strategy) or STRATEGY,
        mode=(topology and topology.mode) or TOPOLOGY_MODE,
        level=(topology and topology.level) or "",
        slices=tuple((item.workers, item.level) for item in (topology and topology.slices) or ()),
        balanced=(topology and topology.balanced) or "",
        capacity=_capacity(spec.capacity),
        beyond=_beyond(spec.capacity) if is_elastic(workers) else "",
        cheapest=((spec.capacity and spec.capacity.prefer) or CAPACITY_PREFERENCE) is CapacityPreference.CHEAPEST,
        fallback_after=_seconds(spec.capacity.fallback_after if spec.capacity else None, FALLBACK_SECONDS),
        preemptible=PREEMPTIBLE if spec.preemptible is None else spec.preemptible,
        budget=budget.preemptions if budget else None,
        budget_window=_seconds(budget.window if budget else None, BUDGET_WINDOW_SECONDS),
        priority_class=spec.priority_class_name or "",
        checkpoint=_checkpoint(spec.checkpoint),
        restart_limits=_restart_limits(restart or Restart()),
        restart_window=_seconds(restart.window if restart else None, RESTART_WINDOW_SECONDS),
        restart_backoff=_seconds(restart.backoff if restart else None, RESTART_BACKOFF_SECONDS),
        hang=_hang(spec.hang or Hang()),
        numerics=_numerics(spec.numerics),
        tracking=_tracking(spec.tracking),
        preflight=spec.health is None or spec.health.preflight is not False,
        slower_by=_slower_by(spec.health or Health()),
        watch_idle=spec.health is None or spec.health.idle is not False,
        ready_timeout=_seconds(spec.ready_timeout, READY_TIMEOUT_SECONDS),
        max_runtime=_optional_seconds(spec.max_runtime),
        window=_window(spec.window),
        deadline=spec.deadline,
        budget_gpu_hours=spec.budget.gpu_hours if spec.budget else None,
        budget_cost=spec.budget.cost if spec.budget else None,
        suspend=spec.suspend,
        ttl=_optional_seconds(spec.ttl_after_finished),
        grace=_seconds(spec.termination_grace_period, GRACE_SECONDS),
        env=spec.env or (),
        env_from=spec.env_from or (),
        volumes=spec.volumes or (),
        volume_mounts=spec.volume_mounts or (),
        pod_template=spec.pod_template,
        node_selector=spec.node_selector or {},
        tolerations=spec.tolerations or (),
        image_pull_secrets=tuple(secret.name for secret in spec.image_pull_secrets or ()),
        service_account=spec.service_account_name or "",
    )


def _partial(workers: Workers) -> bool:
    return workers.min is not None and workers.min < workers.replicas and workers.partial is not False


def is_elastic(workers: Workers) -> bool:
    """Whether the gang may have more than one size, as its spec is written."""
    return (workers.min or workers.replicas) < (workers.max or workers.replicas)


def _capacity(capacity: Capacity | None) -> tuple[str, ...]:
    """A gang that asks for a safe base starts on that, whether or not it can have workers beyond."""
    if capacity is None:
        return ()
    return tuple(kind.value for kind in ((capacity.base,) if capacity.base else capacity.order))


def _beyond(capacity: Capacity | None) -> str:
    return capacity.order[0].value if capacity is not None and capacity.base else ""


def _window(window: Window | None) -> EffectiveWindow | None:
    if window is None:
        return None
    stops = window.at_end is not AtWindowEnd.FINISH
    return EffectiveWindow(window.start, parse_duration(window.duration), window.time_zone, stops)


def _checkpoint(checkpoint: Checkpoint | None) -> EffectiveCheckpoint | None:
    if checkpoint is None:
        return None
    interval: int | Literal["auto"] | None
    if checkpoint.interval is None:
        interval = CHECKPOINT_INTERVAL_SECONDS if checkpoint.every_steps is None else None
    else:
        interval = _seconds_or_auto(checkpoint.interval)
    authority, encryption = checkpoint.ca_config_map_ref, checkpoint.encryption
    return EffectiveCheckpoint(
        uri=checkpoint.uri,
        interval=interval,
        every_steps=checkpoint.every_steps,
        retention=_retention(checkpoint),
        secret=checkpoint.secret_ref.name if checkpoint.secret_ref else "",
        endpoint=checkpoint.endpoint or "",
        addressing=checkpoint.addressing.value if checkpoint.addressing else "",
        ca=(authority.name, authority.key or "ca.crt") if authority else None,
        encryption=_ENCRYPTIONS[encryption.type] if encryption else "",
        kms_key=(encryption.key_id if encryption else None) or "",
        memory=checkpoint.memory.value if checkpoint.memory else "",
        from_uri=checkpoint.from_ or "",
        load=checkpoint.load or Load.ALL,
    )


def _retention(checkpoint: Checkpoint) -> Retention:
    rules = checkpoint.retention
    if rules is None:
        return Retention(last=RETENTION_LAST)
    best, hours = None, rules.every_hours
    if rules.best is not None:
        best = Best(rules.best.metric, (rules.best.mode or BestMode.MIN).value, rules.best.count or 1)
    return Retention(rules.last or RETENTION_LAST, rules.every, hours * 3600 if hours else None, best)


def _resources(spec: TrainingJobSpec, gpus: int) -> tuple[dict[str, str], dict[str, str]]:
    resources = spec.workers.resources
    limits = dict((resources and resources.limits) or {})
    requests = {**limits, **((resources and resources.requests) or {})}
    if gpus:
        requests[GPU_RESOURCE] = limits[GPU_RESOURCE] = str(gpus)
    return requests, limits


def _hang(hang: Hang) -> EffectiveHang:
    return EffectiveHang(*map(_seconds_or_auto, (hang.start, hang.step, hang.evaluation, hang.checkpoint)))


def _numerics(numerics: Numerics | None) -> EffectiveNumerics | None:
    if numerics is None:
        return None
    spike, limit = numerics.spike or Spike(), numerics.limit or NUMERICS_LIMIT
    return EffectiveNumerics(numerics.action, spike.loss or "", spike.gradient_norm or "", limit)


def _tracking(tracking: Tracking | None) -> EffectiveTracking | None:
    if tracking is None or tracking.enabled is False or not tracking.uri:
        return None
    return EffectiveTracking(
        uri=tracking.uri,
        experiment=tracking.experiment or "",
        run_name=tracking.run_name or "",
        tags=tuple(sorted((tracking.tags or {}).items())),
        secret=tracking.secret_ref.name if tracking.secret_ref else "",
    )


def _slower_by(health: Health) -> int:
    return env.DEFAULT_SLOWER_BY if health.slower_by is None else health.slower_by


def _seconds_or_auto(duration: str | None) -> int | Literal["auto"]:
    return AUTO if duration is None or duration == AUTO else parse_duration(duration)


def _seconds(duration: Duration | None, default: int) -> int:
    return default if duration is None else parse_duration(duration)


def _restart_limits(restart: Restart) -> dict[Group, int | None]:
    causes = restart.causes or RestartCauses()
    limit = RESTART_LIMIT if restart.limit is None else restart.limit
    return {
        Group.SCRIPT: limit,
        Group.MEMORY: limit if causes.out_of_memory is None else causes.out_of_memory,
        Group.NETWORK: NETWORK_LIMIT if causes.network is None else causes.network,
        Group.PLATFORM: causes.platform,
    }


def _optional_seconds(duration: Duration | None) -> int | None:
    return None if duration is None else parse_duration(duration)
