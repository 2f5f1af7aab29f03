"""What the environment says about this rank and its job."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from muster_protocol import env
from muster_protocol.checkpoints.retention import Retention, parse_best
from muster_protocol.uris import parse_uri_of_run
from muster_runtime.errors import UsageError
from muster_runtime.session.numerics import Action, Rules

STRATEGIES = ("none", "ddp", "fsdp", "hsdp")
SEED = "MUSTER_SEED"
AUTO = "auto"
_SEEDS = range(-(2**63), 2**64)


@dataclass(frozen=True)
class Settings:
    """`distributed` is whether a launcher (ours or torchrun) started this rank; else it is a laptop's one process."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    ranks_per_worker: int = 1
    distributed: bool = False
    job: str = ""
    job_uid: str = ""
    seed: int = 0
    strategy: str = "none"
    checkpoint: str = ""
    every_steps: int | None = None
    interval_seconds: float | None = None
    node_hours: float | None = None
    """Hours that one node runs between two failures, as the pod was told; None: the interval isn't `auto`."""
    workers: int = 1
    retention: Retention = field(default_factory=Retention)
    blocking_saves: bool = False
    start_from: str = ""
    start_load: str = "all"
    numerics: Rules | None = None
    """None: nobody watches losses and gradients."""
    tracked: bool = False
    """A tracker is told of the run."""

    @property
    def identity(self) -> str:
        """Whose checkpoint in memory this rank may take for its own."""
        return f"{self.job_uid} {self.checkpoint} {self.strategy} {self.rank}/{self.world_size}"


def read_settings(
    environment: Mapping[str, str] = os.environ,
    *,
    seed: int | None = None,
    strategy: str | None = None,
    checkpoint: str | None = None,
    every_steps: int | None = None,
) -> Settings:
    """The job's settings; the keyword arguments count where the job says nothing. UsageError for a bad value."""
    distributed = "RANK" in environment and "WORLD_SIZE" in environment
    world_size = _integer(environment, "WORLD_SIZE", 1) if distributed else 1
    chosen = environment.get(env.STRATEGY) or strategy or ("ddp" if world_size > 1 else "none")
    if chosen not in STRATEGIES:
        raise UsageError(f"the strategy {chosen!r} is not one of {', '.join(STRATEGIES)}")
    if chosen == "none" and world_size > 1:
        raise UsageError(
            f"strategy none with {world_size} ranks would train {world_size} unrelated models; choose ddp, fsdp or hsdp"
        )
    if not distributed:
        chosen = "none"
    start_load = environment.get(env.CHECKPOINT_FROM_LOAD) or "all"
    if start_load not in ("all", "model"):
        raise UsageError(f"{env.CHECKPOINT_FROM_LOAD} is {start_load!r}; it is all or model")
    if every_steps is not None and every_steps < 1:
        raise UsageError(f"checkpoint_every_steps is {every_steps}; it is 1 or more, or left out")
    uri = environment.get(env.CHECKPOINT_URI) or checkpoint or ""
    start_from = environment.get(env.CHECKPOINT_FROM, "")
    if start_from and not uri:
        raise UsageError(
            f"{env.CHECKPOINT_FROM} is {start_from}, but this run has no place for its own checkpoints, so it would "
            f"begin anew: set {env.CHECKPOINT_URI}, too, or checkpoint= of muster.start, to another place"
        )
    try:
        if uri:
            parse_uri_of_run(uri)
        interval = _interval(environment)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Settings(
        rank=_integer(environment, "RANK", 0) if distributed else 0,
        local_rank=_integer(environment, "LOCAL_RANK", 0) if distributed else 0,
        world_size=world_size,
        ranks_per_worker=_integer(environment, "LOCAL_WORLD_SIZE", world_size) if distributed else 1,
        distributed=distributed,
        job=environment.get(env.JOB, ""),
        job_uid=environment.get(env.JOB_UID, "") or environment.get(env.JOB, ""),
        seed=_seed(environment, seed or 0),
        strategy=chosen,
        checkpoint=uri,
        every_steps=_integer(environment, env.CHECKPOINT_EVERY_STEPS, every_steps or 0, least=0) or None,
        interval_seconds=interval,
        node_hours=_node_hours(environment) if environment.get(env.CHECKPOINT_INTERVAL) == AUTO else None,
        workers=max(1, _integer(environment, env.WORKERS, 1)),
        retention=_retention(environment),
        blocking_saves=environment.get(env.CHECKPOINT_BLOCKING, "") not in ("", "0"),
        start_from=start_from,
        start_load=start_load,
        numerics=_numerics(environment),
        tracked=bool(environment.get(env.TRACKING_URI)),
    )


def _numerics(environment: Mapping[str, str]) -> Rules | None:
    action = environment.get(env.NUMERICS)
    if not action:
        return None
    known = [each.value for each in Action]
    if action not in known:
        raise UsageError(f"{env.NUMERICS} is {action!r}; it is {', '.join(known)}, or unset")
    return Rules(
        Action(action),
        loss_factor=_above(environment, env.NUMERICS_LOSS, 1, "a number"),
        norm_factor=_above(environment, env.NUMERICS_NORM, 1, "a number"),
        limit=_integer(environment, env.NUMERICS_LIMIT, Rules.limit),
    )


def _above(environment: Mapping[str, str], name: str, least: int, what: str) -> float | None:
    """A variable's value, `what` above `least`; None where it is unset."""
    text = environment.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not least < value < math.inf:
        raise UsageError(f"{name} is {text!r}; it is {what} above {least}, or unset")
    return value


def _interval(environment: Mapping[str, str]) -> float | None:
    text = environment.get(env.CHECKPOINT_INTERVAL)
    if not text or text == AUTO:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{env.CHECKPOINT_INTERVAL} is {text!r}; it is a number of seconds, or {AUTO}")
    return seconds


def _seed(environment: Mapping[str, str], default: int) -> int:
    seed = _integer(environment, SEED, default)
    if seed not in _SEEDS:
        raise UsageError(f"the seed {seed} is too large; torch takes {_SEEDS.start} to {_SEEDS.stop - 1}")
    return seed


def _node_hours(environment: Mapping[str, str]) -> float:
    return _above(environment, env.CHECKPOINT_NODE_HOURS, 0, "a number of hours") or env.NODE_HOURS["on-demand"]


def _retention(environment: Mapping[str, str]) -> Retention:
    best = environment.get(env.CHECKPOINT_KEEP_BEST)
    try:
        return Retention(
            last=_integer(environment, env.CHECKPOINT_KEEP_LAST, 0, least=0) or None,
            every=_integer(environment, env.CHECKPOINT_KEEP_EVERY, 0, least=0) or None,
            every_seconds=_integer(environment, env.CHECKPOINT_KEEP_SECONDS, 0, least=0) or None,
            best=parse_best(best) if best else None,
        )
    except ValueError as error:
        raise UsageError(f"{env.CHECKPOINT_KEEP_BEST}: {error}") from error


def _integer(environment: Mapping[str, str], name: str, default: int, *, least: int | None = None) -> int:
    text = environment.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}; it must be a whole number") from None
    if least is not None and value < least:
        raise UsageError(f"{name} is {text!r}; it must be a whole number of {least} or more")
    return value
