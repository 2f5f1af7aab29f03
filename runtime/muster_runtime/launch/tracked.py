"""What a run's tracker is told, from what index 0's launcher knows: parameters, tags and values."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster_protocol import env
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_status import Facts, Profiling
from muster_protocol.messages import StopReason
from muster_runtime import report
from muster_runtime.launch.config import Config
from muster_runtime.telemetry.gpus import Gpu
from muster_runtime.tracking.tracker import Point, RunStatus

COMMIT_VARIABLES: Final = ("GIT_COMMIT", "GIT_SHA", "GITHUB_SHA", "CI_COMMIT_SHA", "SOURCE_COMMIT", "VCS_REF")
"""What images are known to carry the commit in that they were built from."""
_COMMIT: Final = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")
_SECRET_NAME: Final = r"[\w.-]*(?:token(?!s|iz)|secret|passw|api[-_]?key|credential)[\w.-]*"
"""`--max-tokens` and `--tokenizer` are none."""
_SECRET: Final = re.compile(_SECRET_NAME, re.IGNORECASE)
_SECRET_INSIDE: Final = re.compile(
    rf"""({_SECRET_NAME}=|(?<!\S)-{_SECRET_NAME}\s+)(?:"[^"]*"|'[^']*'|\S+)""", re.IGNORECASE
)
"""`model.api_key=...`, also within a word that is a command line itself: `bash -c "HF_TOKEN=... python ..."`."""
_HIDDEN: Final = "***"
_MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True)
class News:
    """To be told."""

    points: tuple[Point, ...] = ()
    params: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None


def start(config: Config, environ: Mapping[str, str], folder: Path) -> News:
    """What is known when the launcher starts. `folder`: where the command runs."""
    assert config.tracking is not None
    command = shown(config.command)
    line = shlex.join(command)
    tags = {
        "muster.job": config.job,
        "muster.namespace": config.namespace,
        "muster.workers": str(config.workers),
        "muster.world_size": str(config.world_size),
        "muster.strategy": environ.get(env.STRATEGY, ""),
        "muster.checkpoint.uri": config.checkpoint_uri,
        "mlflow.source.type": "JOB",
        "mlflow.source.name": line,
        "mlflow.source.git.commit": commit(environ, folder),
        **config.tracking.tags,
    }
    params = {"command": line, **arguments(command)}
    return News(params=params, tags={name: value for name, value in tags.items() if value})


def note(config: Config) -> str:
    """The description of a new run, in Markdown."""
    where = f"`{config.namespace}/{config.job}`" if config.namespace else f"`{config.job}`"
    lines = [f"Training run {where}, by Muster."]
    if config.checkpoint_uri:
        lines.append(f"Checkpoints, and profiles below `profiles/`: `{config.checkpoint_uri}`")
    return "\n\n".join(lines)


def shown(command: Iterable[str]) -> tuple[str, ...]:
    """The command line without the values of what names itself a secret: whoever reads the tracker would read them."""
    words: list[str] = []
    hidden = False
    for word in command:
        name, equals, _ = word.partition("=")
        secret = word.startswith("-") and not name.count(" ") and _SECRET.search(name) is not None
        if hidden and not word.startswith("-"):
            words.append(_HIDDEN)
        elif secret and equals:
            words.append(f"{name}={_HIDDEN}")
        else:
            words.append(_SECRET_INSIDE.sub(rf"\1{_HIDDEN}", word))
        hidden = secret and not equals
    return tuple(words)


def arguments(command: Iterable[str]) -> dict[str, str]:
    """The options of a command line, `--lr 3e-4` as `args/lr`; one without a value is `true`."""
    found: dict[str, str] = {}
    open_option = ""
    for word in command:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found[f"args/{name}"] = value if equals else "true"
            open_option = "" if equals else f"args/{name}"
        elif open_option:
            found[open_option] = word
            open_option = ""
    return found


def commit(environ: Mapping[str, str], folder: Path) -> str:
    """The commit of the code: by a variable of the image, else by a `.git` in `folder`; "" where nothing tells."""
    for name in COMMIT_VARIABLES:
        if _COMMIT.match(environ.get(name, "")):
            return environ[name]
    try:
        head = (folder / ".git" / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = _reference(folder / ".git", head.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return ""
    return head if _COMMIT.match(head) else ""


def _reference(git: Path, name: str) -> str:
    try:
        return (git / name).read_text().strip()
    except OSError:
        packed = (git / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), "")


def of_report(message: report.Message, config: Config, now: float) -> News | None:
    """What a rank's message tells; only rank 0's counts."""
    if message.rank != 0:
        return None
    if isinstance(message, report.Points):
        return News(tuple(_reported(message)))
    if isinstance(message, report.Described):
        if message.about == "params":
            return News(params=message.values)
        return News(tags={f"muster.{message.about}.{name}": value for name, value in message.values.items()})
    if isinstance(message, report.Progress):
        return News(tuple(_progress(message, now)))
    if isinstance(message, report.CheckpointCommitted):
        return _committed(message)
    if isinstance(message, report.Resumed):
        return News((Point("muster/resumed_from_step", message.step, message.step, now),))
    return None


def _reported(message: report.Points) -> Iterator[Point]:
    for step, at, values in message.points:
        for name, value in values.items():
            yield Point(name, float(value), step, at)


def _progress(message: report.Progress, now: float) -> Iterator[Point]:
    values = {
        "step_seconds": message.step_seconds,
        "tokens_per_second": message.tokens_per_second,
        "samples_per_second": message.samples_per_second,
        "mfu": message.mfu,
        "gradient_norm": None if message.grad_norm is None else float(message.grad_norm),
    }
    for name, value in values.items():
        if value is not None:
            yield Point(f"muster/{name}", value, message.step, now)


def _committed(message: report.CheckpointCommitted) -> News:
    values = {"seconds": message.seconds, "stall_seconds": message.stall, "bytes": message.total or message.bytes}
    points = (Point(f"muster/checkpoint_{k}", v, message.step, message.committed_at) for k, v in values.items())
    return News(tuple(points), tags={"muster.checkpoint.uri": message.uri, "muster.checkpoint.step": str(message.step)})


def of_profile(profile: Profiling) -> News:
    """A profile that was stored."""
    return News(tags={f"muster.profile.{profile.uri.rpartition('/')[2]}": profile.uri})


def of_machine(gpus: Iterable[Gpu], step: int, now: float) -> News:
    """This pod's GPUs, by the names that MLflow shows among its system metrics."""
    points: list[Point] = []
    for gpu in gpus:
        used, total = gpu.memory_used, gpu.memory_total
        values = {
            "utilization_percentage": None if gpu.utilization is None else gpu.utilization * 100,
            "memory_usage_megabytes": None if used is None else used / _MEGABYTE,
            "memory_usage_percentage": None if used is None or not total else used / total * 100,
            "power_usage_watts": gpu.power,
        }
        name = f"system/gpu_{gpu.number.replace(':', '_')}"
        points += [Point(f"{name}_{what}", value, step, now) for what, value in values.items() if value is not None]
    return News(tuple(points))


def of_facts(facts: Facts, step: int, now: float) -> News:
    """The operator's word, with what has been used since."""
    since = max(0.0, now - facts.at)
    hours = (facts.gpu_seconds + facts.gpus * since) / 3600
    points = [Point("muster/gpu_hours", hours, step, now)]
    if facts.cost:
        points.append(Point("muster/cost", float(facts.cost) + facts.hourly * since / 3600, step, now))
    tags = dict(facts.tags)
    if facts.currency:
        tags["muster.currency"] = facts.currency
    return News(tuple(points), tags=tags)


def readable(facts: Facts) -> bool:
    """Whether the numbers in it are such, whoever has sent it."""
    texts = (facts.cost, facts.currency)
    if not all(isinstance(one, str) for one in texts) or not isinstance(facts.tags, dict):
        return False
    if not all(isinstance(value, str) for value in facts.tags.values()):
        return False
    numbers = (facts.gpus, facts.gpu_seconds, facts.hourly, facts.at)
    return all(isinstance(one, (int, float)) and _is_finite(one) for one in numbers) and _is_finite(facts.cost or 0)


def _is_finite(value: float | str) -> bool:
    try:
        return math.isfinite(float(value))
    except (ValueError, OverflowError):  # no number, or an integer beyond every float
        return False


_STOPPED: Final = {
    StopReason.PREEMPT: RunStatus.SCHEDULED,
    StopReason.SUSPEND: RunStatus.SCHEDULED,
    StopReason.MAX_RUNTIME: RunStatus.KILLED,
    StopReason.PEER: RunStatus.FAILED,
}


def status(facts: ExitFacts, reason: StopReason | None, *, by_signal: bool) -> RunStatus:
    """How the run stands when this launcher has ended. `reason`: why it was asked to stop, if it was; `by_signal`: not
    by the operator, so the pod was deleted."""
    if facts.cause is Cause.SUCCEEDED:
        return RunStatus.FINISHED
    if facts.cause is Cause.MAX_RUNTIME or (facts.cause is Cause.PREEMPTED and by_signal):
        return RunStatus.KILLED
    if facts.cause is Cause.PREEMPTED and reason is not None:
        return _STOPPED[reason]
    return RunStatus.FAILED
