"""The demo's training: one run that nobody disturbs, beside one that loses a worker half way."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from hack.cluster.progress import Progress
from hack.demo import install, strike, watch
from hack.demo.kube import Json, Kube, KubeError
from hack.demo.screen import Screen
from hack.demo.verify import Story
from muster_protocol import losses, manifest

JOBS = ("gpt", "gpt-undisturbed")
"""The one that loses a worker, and the other. No example has these names: who applies one of them starts a run anew."""
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "job.yaml"
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class CheckpointRow:
    """A checkpoint in S3: size in bytes."""

    uri: str
    files: int
    size: int


@dataclass(frozen=True)
class Outcome:
    job: str
    story: Story
    checkpoints: tuple[CheckpointRow, ...]


@dataclass
class Observed:
    """What was seen of the job that loses a worker."""

    epoch: int = 0
    killed_at: int | None = None
    committed: set[int] = field(default_factory=set)
    resumed_from: int | None = None


def run(kube: Kube, console: Console, progress: Progress, namespace: str, bucket: str) -> Outcome:
    """Applies both jobs, kills worker 1 of one of them half way, and waits for both ends.

    Raises KubeError when they don't end within TIMEOUT_S seconds, or one fails for good.
    """
    example = yaml.safe_load(EXAMPLE.read_text())
    job, reference = (_named(example, name, namespace, bucket) for name in JOBS)
    for document in (job, reference):
        _start_anew(kube, document, progress)
    observed = Observed()
    with Screen(console) as screen:
        screen.note("applied two TrainingJobs: gpt will lose a worker half way, gpt-undisturbed will not")
        screen.note("importing torch takes the ranks a while")
        views = _until_both_end(kube, screen, (job, reference), observed)
    total = max((view.total or 0 for view in views), default=0)
    story = Story(
        succeeded=views[0].succeeded,
        reference_succeeded=views[1].succeeded,
        killed_at=observed.killed_at,
        committed=tuple(sorted(observed.committed)),
        resumed_from=observed.resumed_from,
        losses=_losses(kube, job),
        reference=_losses(kube, reference),
        total=total,
    )
    return Outcome(job["metadata"]["name"], story, _checkpoints(kube, job))


def _named(example: Json, name: str, namespace: str, bucket: str) -> Json:
    """The example under another name, with checkpoints of its own in the local cluster's S3 server."""
    document = copy.deepcopy(example)
    document["metadata"] = {"name": name, "namespace": namespace}
    document["spec"].setdefault("checkpoint", {})["uri"] = f"s3://{bucket}/{name}"
    return document


def _uri(document: Json) -> tuple[str, str]:
    bucket, _, prefix = str(document["spec"]["checkpoint"]["uri"]).removeprefix("s3://").partition("/")
    return bucket, prefix


def _start_anew(kube: Kube, document: Json, progress: Progress) -> None:
    """Removes what an earlier demo left of the job, its checkpoints too, and applies it."""
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    if kube.job(namespace, name) is not None:
        with progress.part(f"remove {namespace}/{name} of an earlier demo"):
            kube.kubectl("delete", "trainingjob", name, "-n", namespace, "--timeout=150s", timeout_s=180)
            kube.wait(f"the end of {name}'s old pods", lambda: not kube.pods(namespace, name), 150)
    bucket, prefix = _uri(document)
    install.empty(kube, bucket, f"{prefix}/")
    kube.apply(document)


def _until_both_end(
    kube: Kube, screen: Screen, documents: tuple[Json, Json], observed: Observed
) -> tuple[watch.JobView, watch.JobView]:
    namespace = documents[0]["metadata"]["namespace"]
    seen: dict[str, watch.JobView] = {}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        latest = [_latest(kube, document) for document in documents]
        job, reference = (_look(kube, *one, seen) for one in zip(documents, latest, strict=True))
        screen.show((job, reference))
        _observe(kube, screen, documents[0], job, latest[0], observed)
        if job.ended and reference.ended:
            return job, reference
        if time.monotonic() > deadline:
            names = (job.name, reference.name)
            told = "\n".join(kube.describe(namespace, name) for name in names)
            raise KubeError(f"{' and '.join(names)} did not end within {TIMEOUT_S:.0f} s\n{told}")
        time.sleep(0.4)


def _look(kube: Kube, document: Json, latest: manifest.Latest | None, seen: dict[str, watch.JobView]) -> watch.JobView:
    """The job as it is now, with the checkpoint that S3 has as its latest: the operator hears of it later."""
    view = watch.look(kube, document["metadata"]["namespace"], document["metadata"]["name"])
    view = watch.since(view, seen.get(view.name, view))
    if latest is not None:
        view = replace(view, committed=latest.step)
    seen[view.name] = view
    return view


def _observe(
    kube: Kube,
    screen: Screen,
    document: Json,
    view: watch.JobView,
    latest: manifest.Latest | None,
    observed: Observed,
) -> None:
    """Kills a worker when the time has come, and notes what was committed before and where the gang went on."""
    if observed.killed_at is None:
        if latest and latest.step and view.step and view.total and 2 * view.step >= view.total and not view.ended:
            _strike(kube, screen, document, view, observed)
        return
    if latest and latest.step is not None and observed.resumed_from is None and latest.epoch == observed.epoch:
        if latest.step not in observed.committed:
            screen.note(f"step {latest.step} is committed, whose save was under way at the kill")
        observed.committed.add(latest.step)
    if observed.resumed_from is None and view.resumed_from is not None and latest and latest.epoch > observed.epoch:
        observed.resumed_from = view.resumed_from
        screen.note(f"the gang is whole again and goes on at step {view.resumed_from}")


def _strike(kube: Kube, screen: Screen, document: Json, view: watch.JobView, observed: Observed) -> None:
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    for pod in kube.pods(namespace, name):
        if pod["metadata"]["labels"].get("muster.dev/index") == "1":
            killed = strike.kill(pod)
            if killed:
                # A commit that was under way may still land; `_observe` notes it while the epoch is this one.
                latest = _latest(kube, document)
                observed.killed_at = view.step
                if latest and latest.step is not None:
                    observed.epoch = latest.epoch
                    observed.committed.add(latest.step)
                at = f"at step {view.step}, with step {latest.step if latest else None} committed"
                screen.note(f"SIGKILL to {len(killed)} processes of {pod['metadata']['name']} {at}")


# ------------------------------------------------------------------------------------------------------ what is in S3


def _latest(kube: Kube, document: Json) -> manifest.Latest | None:
    bucket, prefix = _uri(document)
    client = _client(kube)
    try:
        body = client.get_object(Bucket=bucket, Key=f"{prefix}/{manifest.LATEST_KEY}")["Body"].read()
    except client.exceptions.NoSuchKey:
        return None
    return manifest.decode_latest(body)


_clients: dict[str, Any] = {}


def _client(kube: Kube) -> Any:
    """One client a cluster: making one takes longer than a call."""
    if kube.cluster.name not in _clients:
        _clients[kube.cluster.name] = install.s3_client(kube)
    return _clients[kube.cluster.name]


def _losses(kube: Kube, document: Json) -> Mapping[int, float]:
    bucket, prefix = _uri(document)
    return losses.read(_client(kube), bucket, prefix)


def _checkpoints(kube: Kube, document: Json) -> tuple[CheckpointRow, ...]:
    bucket, prefix = _uri(document)
    sizes: dict[str, list[int]] = {}
    for page in _client(kube).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/step-"):
        for entry in page.get("Contents", []):
            step = entry["Key"].removeprefix(f"{prefix}/").split("/")[0]
            sizes.setdefault(step, []).append(entry["Size"])
    return tuple(
        CheckpointRow(f"s3://{bucket}/{prefix}/{step}", len(found), sum(found)) for step, found in sorted(sizes.items())
    )
