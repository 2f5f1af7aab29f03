"""What the launcher reads from its environment, once, at its start."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from muster_protocol import env, exits
from muster_protocol.launcher_api import heartbeat_seconds
from muster_protocol.messages import Member
from muster_protocol.uris import parse_uri_of_run
from muster_runtime.launch.stragglers import USUAL, Rule
from muster_runtime.launch.watchdog import NEVER, Limits

BIND: Final = "MUSTER_BIND"
"""Address that the HTTP API listens on. Unset: all of the pod's, and only 127.0.0.1 on a laptop."""

TERMINATION_LOG: Final = "MUSTER_TERMINATION_LOG"
"""File of the termination message. Unset: the one that kubelet reads."""

RUN_ROOT: Final = "MUSTER_RUN_ROOT"
"""Folder below which the run folder is made. Unset: the first of /muster/run, /dev/shm and the temporary folder that
can be written; a pod may have its root and /muster read-only."""

HEARTBEAT: Final = "MUSTER_HEARTBEAT_SECONDS"
"""Seconds between two heartbeats. Unset: what `launcher_api.heartbeat_seconds` says. A worker is lost after ten."""

PACE_WINDOW: Final = "MUSTER_PACE_WINDOW_SECONDS"
"""Seconds over which ranks are compared. Unset: as `stragglers.Rule` says."""

DEFAULT_GRACE_SECONDS: Final = 30.0


class ConfigError(Exception):
    """One line: which variable or argument is wrong, and what a right one looks like."""


@dataclass(frozen=True)
class Tracked:
    """Where the run's parameters and metrics go. `key` is the same for all starts of the run, "" on a laptop."""

    uri: str
    experiment: str
    name: str
    key: str
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Config:
    """Times are in seconds. `ready_timeout` and `max_runtime` are infinite when there is no limit.

    `replace_seconds`: how long a lost pod of the gang is waited for; 0 where nobody would replace it. `reached`: steps
    that the run had done before this pod was made. `memory_request`: bytes, None where nobody requests any.
    """

    command: tuple[str, ...]
    job: str
    namespace: str
    generation: int
    index: int
    attempt: int
    workers: int
    processes: int
    leader_host: str
    port: int
    bind: str | None
    pod_uid: str
    address: str
    token: str
    ready_timeout: float
    grace: float
    max_runtime: float
    checkpoint_uri: str
    termination_log: Path | None
    run_roots: tuple[Path, ...]
    heartbeat: float
    restarts: int = 0
    memory_restarts: int = 0
    network_restarts: int = 0
    memory: str = "auto"
    memory_request: int | None = None
    replace_seconds: float = 0.0
    node: str = ""
    hang: Limits = NEVER
    reached: int = 0
    pace: Rule = USUAL
    preflight: bool = False
    tracking: Tracked | None = None
    start_from: str = ""

    @property
    def keeps_memory(self) -> bool:
        """Whether the ranks get memory that outlives them: only where somebody would come back to it."""
        in_place = self.restarts or self.memory_restarts or (self.network_restarts and self.world_size > 1)
        return self.memory != "off" and bool(in_place or self.replace_seconds > 0)

    @property
    def copies_memory(self) -> bool:
        """Whether other pods may keep a copy of that memory: only where a lost pod is made anew, and joins again."""
        return self.memory in ("auto", "peer") and self.replace_seconds > 0

    @property
    def world_size(self) -> int:
        return self.workers * self.processes

    @property
    def member(self) -> Member:
        """This pod, as it joins."""
        return Member(self.index, self.pod_uid, self.address, self.generation, self.attempt, node=self.node)

    @property
    def leads(self) -> bool:
        return self.index == 0

    @property
    def first_wait(self) -> tuple[float, str]:
        """How long this launcher waits for the whole gang before its first ranks, and what that time is called."""
        if self.attempt and self.replace_seconds:  # it stands in for a lost pod, and the others wait no longer
            return self.replace_seconds, env.REPLACE_SECONDS
        return self.ready_timeout, "readyTimeout"

    def rank(self, local_rank: int) -> int:
        return self.index * self.processes + local_rank


def read(environ: Mapping[str, str], command: tuple[str, ...], processes: int | None = None) -> Config:
    """The configuration of a pod when `MUSTER_JOB` is set, of a laptop otherwise.

    `processes` is the command line's `--nproc` and wins over the environment. Raises ConfigError.
    """
    if not command:
        raise ConfigError("no command to run; write it after `--`: muster-launch -- python train.py")
    if processes is not None and processes < 1:
        raise ConfigError(f"--nproc is {processes}; it has to be 1 or more")
    config = _pod(environ, command, processes) if environ.get(env.JOB) else _laptop(environ, command, processes)
    config = replace(config, tracking=_tracking(environ, config), start_from=environ.get(env.CHECKPOINT_FROM, ""))
    if config.checkpoint_uri:
        try:
            parse_uri_of_run(config.checkpoint_uri)
        except ValueError as error:
            raise ConfigError(f"{env.CHECKPOINT_URI}: {error}") from error
    return config


def _pod(environ: Mapping[str, str], command: tuple[str, ...], processes: int | None) -> Config:
    workers = _whole(environ, env.WORKERS, minimum=1)
    index = _whole(environ, env.INDEX, minimum=0)
    if index >= workers:
        raise ConfigError(f"{env.INDEX} is {index}, but {env.WORKERS} is {workers}: indexes go from 0 to {workers - 1}")
    alone = workers == 1
    return Config(
        command=command,
        job=environ[env.JOB],
        namespace=_text(environ, env.NAMESPACE),
        generation=_whole(environ, env.GENERATION, minimum=0),
        index=index,
        attempt=_whole(environ, env.ATTEMPT, minimum=0, default=0),
        workers=workers,
        processes=processes or _whole(environ, env.PROCESSES_PER_WORKER, minimum=1, default=1),
        leader_host=environ.get(env.LEADER_HOST, "") if alone or index == 0 else _text(environ, env.LEADER_HOST),
        port=_whole(environ, env.PORT, minimum=0, maximum=65535, default=env.DEFAULT_PORT),
        bind=environ.get(BIND),
        pod_uid=_text(environ, env.POD_UID),
        address=environ.get(env.POD_IP) or "127.0.0.1" if alone else _text(environ, env.POD_IP),
        token=_text(environ, env.TOKEN),
        ready_timeout=_seconds(environ, env.READY_TIMEOUT, math.inf, zero=math.inf),
        grace=_seconds(environ, env.GRACE_SECONDS, DEFAULT_GRACE_SECONDS),
        max_runtime=_seconds(environ, env.MAX_RUNTIME, math.inf),
        checkpoint_uri=environ.get(env.CHECKPOINT_URI, ""),
        termination_log=Path(environ.get(TERMINATION_LOG) or exits.TERMINATION_MESSAGE_PATH),
        run_roots=_run_roots(environ),
        heartbeat=_seconds(environ, HEARTBEAT, heartbeat_seconds(workers), zero=heartbeat_seconds(workers)),
        restarts=_restarts(environ),
        memory_restarts=_other_restarts(environ, env.MEMORY_RESTARTS_IN_PLACE),
        network_restarts=_other_restarts(environ, env.NETWORK_RESTARTS_IN_PLACE),
        memory=environ.get(env.CHECKPOINT_MEMORY) or "auto",
        memory_request=_whole(environ, env.MEMORY_REQUEST, minimum=0, maximum=2**63 - 1)
        if environ.get(env.MEMORY_REQUEST)
        else None,
        replace_seconds=0.0 if alone else _seconds(environ, env.REPLACE_SECONDS, 0.0),
        node=environ.get(env.NODE_NAME, ""),
        hang=_limits(environ),
        reached=_whole(environ, env.REACHED_STEP, minimum=0, maximum=2**63 - 1, default=0),
        pace=_pace(environ),
        preflight=environ.get(env.PREFLIGHT) != "0",
    )


def _laptop(environ: Mapping[str, str], command: tuple[str, ...], processes: int | None) -> Config:
    return Config(
        command=command,
        job=next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name),
        namespace="",
        generation=1,
        index=0,
        attempt=0,
        workers=1,
        processes=processes or _whole(environ, env.PROCESSES_PER_WORKER, minimum=1, default=1),
        leader_host="",
        port=_whole(environ, env.PORT, minimum=0, maximum=65535, default=0),
        bind=environ.get(BIND) or "127.0.0.1",
        pod_uid="",
        address="127.0.0.1",
        token=environ.get(env.TOKEN) or secrets.token_hex(16),
        ready_timeout=math.inf,
        grace=_seconds(environ, env.GRACE_SECONDS, DEFAULT_GRACE_SECONDS),
        max_runtime=_seconds(environ, env.MAX_RUNTIME, math.inf),
        checkpoint_uri=environ.get(env.CHECKPOINT_URI, ""),
        termination_log=Path(environ[TERMINATION_LOG]) if environ.get(TERMINATION_LOG) else None,
        run_roots=_run_roots(environ),
        heartbeat=heartbeat_seconds(1),
        restarts=_restarts(environ),
        memory_restarts=_other_restarts(environ, env.MEMORY_RESTARTS_IN_PLACE),
        network_restarts=_other_restarts(environ, env.NETWORK_RESTARTS_IN_PLACE),
        memory=environ.get(env.CHECKPOINT_MEMORY) or "auto",
        hang=_limits(environ),
    )


def _tracking(environ: Mapping[str, str], config: Config) -> Tracked | None:
    """None also for all but index 0. Tags that can't be read are left out: nothing ends for telemetry."""
    uri = environ.get(env.TRACKING_URI, "")
    if not uri or not config.leads:
        return None
    try:
        tags = json.loads(environ.get(env.TRACKING_TAGS) or "{}")
    except ValueError:
        tags = {}
    return Tracked(
        uri=uri,
        experiment=environ.get(env.TRACKING_EXPERIMENT) or config.namespace or "Default",
        name=environ.get(env.TRACKING_RUN_NAME) or config.job,
        key=environ.get(env.JOB_UID, ""),
        tags={str(name): str(value) for name, value in tags.items()} if isinstance(tags, dict) else {},
    )


def _limits(environ: Mapping[str, str]) -> Limits:
    names = (env.HANG_START, env.HANG_STEP, env.HANG_EVALUATION, env.HANG_CHECKPOINT)
    return Limits(
        *(None if environ.get(name) == "auto" else _seconds(environ, name, math.inf, zero=math.inf) for name in names)
    )


def _pace(environ: Mapping[str, str]) -> Rule:
    slower_by = _whole(environ, env.SLOWER_BY, minimum=0, default=env.DEFAULT_SLOWER_BY)
    window = _seconds(environ, PACE_WINDOW, Rule.window)
    return Rule(factor=1 + slower_by / 100 if slower_by else math.inf, window=window)


def _run_roots(environ: Mapping[str, str]) -> tuple[Path, ...]:
    if environ.get(RUN_ROOT):
        return (Path(environ[RUN_ROOT]),)
    return Path(env.MOUNT_PATH) / "run", Path("/dev/shm"), Path(environ.get("TMPDIR") or "/tmp")


def _restarts(environ: Mapping[str, str]) -> int:
    return _whole(environ, env.RESTARTS_IN_PLACE, minimum=0, default=0)


def _other_restarts(environ: Mapping[str, str], name: str) -> int:
    """Those after anything but a crash, which `name` has the number of."""
    return _whole(environ, name, minimum=0, default=_restarts(environ))


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set; the operator sets it in every training pod, so don't override it")
    return value


def _whole(
    environ: Mapping[str, str], name: str, *, minimum: int, maximum: int = 2**31, default: int | None = None
) -> int:
    text = environ.get(name, "") if default is not None else _text(environ, name)
    if not text and default is not None:
        return default
    if not text.isascii() or not text.isdigit() or not minimum <= int(text) <= maximum:
        upper = f" and at most {maximum}" if maximum < 2**31 else ""
        raise ConfigError(f"{name} is {text!r}; it has to be a whole number of at least {minimum}{upper}")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float, *, zero: float = 0.0) -> float:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"{name} is {text!r}; it has to be a number of seconds, 0 or more")
    return value or zero
