"""Faults of what a run needs besides its nodes: the operator, the API server, etcd, DNS, S3."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from hack.chaos import clock, kernel, unavailable
from hack.chaos.recipe import CLOCK, SET_BY_CLOCK
from hack.chaos.stage import Stage, now
from hack.chaos.victim import Hit, Victim, VoidRun, inside, name_of
from hack.cluster import network, processes, state, storage
from hack.cluster.plan import S3_PORT
from hack.cluster.processes import Launcher
from hack.demo import install, strike
from hack.demo.kube import Json

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{install.SYSTEM}/leases/muster-operator"
READY_S = 90.0


def operator_killed(victim: Victim) -> Hit:
    """SIGKILL to the operator that leads; over when another has taken the Lease."""
    stage = victim.stage
    name, pid = _leader(victim)
    holder = _holder(stage)
    at = now()
    os.kill(pid, signal.SIGKILL)
    victim.until_ended(pid)
    victim.until("another holder of the Lease", lambda: _holder(stage) not in ("", holder), READY_S)
    told = f"process {pid} is gone, and {_holder(stage)} holds the Lease in place of {holder}"
    return Hit(at, f"SIGKILL to the operator that leads, {name}", told, healed=now())


def operators_clock_jumped(jump: float, seconds: float) -> Callable[[Victim], Hit]:
    """The clock of the day of the operator that leads jumps, forwards or back, and is right again so long after."""

    def fault(victim: Victim) -> Hit:
        stage, off = victim.stage, victim.dice.choice((jump, -jump))
        mend = _hold_clocks(stage)
        try:
            name, pid = _leader(victim)
            file, at = inside(pid, CLOCK), now()
            file.write_text(f"{off:+.0f}\n")
            victim.until("the jump in the Lease", lambda: abs(_renewed(stage) - time.time() - off) < READY_S)
            time.sleep(seconds)  # so long it lasts
            if not (file.exists() and name in _holder(stage)):
                raise VoidRun(f"{name} no longer led with its clock off")
            file.write_text("+0\n")
            victim.until("the clock's being right", lambda: abs(_renewed(stage) - time.time()) < READY_S)
        except BaseException:
            mend()
            raise
        what = f"the clock of {name}, the operator that leads, jumps by {off:+.0f} s for {seconds:g} s"
        return Hit(at, what, "the Lease's renewTime shows it", healed=now(), mend=mend)

    return fault


def _hold_clocks(stage: Stage) -> Callable[[], None]:
    """Makes the operator's pods anew, with clocks that can be set. Returns what takes that back."""
    folder = stage.folder / "operator"
    folder.mkdir(parents=True, exist_ok=True)
    clock.build(folder)
    mount = {"name": "journal", "mountPath": "/journal"}
    container = {"name": "operator", "env": SET_BY_CLOCK, "volumeMounts": [mount]}
    volume = {"name": "journal", "hostPath": {"path": str(folder)}}
    patch = {"spec": {"template": {"spec": {"containers": [container], "volumes": [volume]}}}}
    deployment = ("deployment/muster", "--namespace", install.SYSTEM)

    def rolled(*verb: str) -> None:
        stage.kube.kubectl(*verb, *deployment)
        stage.kube.kubectl("rollout", "status", *deployment, f"--timeout={READY_S:g}s")

    rolled("patch", f"--patch={json.dumps(patch)}")
    return lambda: rolled("rollout", "undo")


def _leader(victim: Victim) -> tuple[str, int]:
    """Name and process of the operator's pod that leads. Raises VoidRun when none does for long, or isn't found."""
    stage = victim.stage
    # Between two that lead nobody holds the Lease, and one that is about to go may hold it for another second.
    victim.until("an operator that leads", lambda: _leading(stage), READY_S)
    pod = _leading(stage)
    pid = strike.launcher(pod) if pod is not None else None
    if pod is None or pid is None:
        raise VoidRun(f"no process of the operator that leads ({_holder(stage)!r}) was found")
    return name_of(pod), pid


def _leading(stage: Stage) -> Json | None:
    holder, pods = _holder(stage), operators(stage)
    staying = (pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return next((pod for pod in staying if name_of(pod) in holder), None)


def operators(stage: Stage) -> list[Json]:
    """The operator's pods, whoever of them leads."""
    selector = "labelSelector=app.kubernetes.io%2Fname%3Dmuster"
    return stage.kube.items(f"/api/v1/namespaces/{install.SYSTEM}/pods?{selector}")


def _lease(stage: Stage) -> Json:
    return (stage.kube.get(LEASE) or {}).get("spec") or {}


def _holder(stage: Stage) -> str:
    return str(_lease(stage).get("holderIdentity") or "")


def _renewed(stage: Stage) -> float:
    """When the Lease was renewed, by the clock of its holder, in seconds since the epoch; 0 when it has none."""
    text = str(_lease(stage).get("renewTime") or "")
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def apiserver_away(seconds: float) -> Callable[[Victim], Hit]:
    """kube-apiserver ends and starts again so long after."""

    def fault(victim: Victim) -> Hit:
        cluster = victim.stage.kube.cluster
        pid, at = cluster.process("kube-apiserver").pid, now()
        cluster.stop_apiserver()
        try:
            answered = _answers(cluster.api_server)
            time.sleep(seconds)  # so long it lasts
        finally:
            cluster.start_apiserver()
        if answered:
            raise VoidRun("the API server still answered")
        told = f"process {pid} is gone, and connections were refused"
        return Hit(at, f"API server stopped, started after {seconds:g} s", told, healed=now())

    return fault


def stands_still(program: str, seconds: float) -> Callable[[Victim], Hit]:
    """SIGSTOP to a process of the control plane, and SIGCONT so long after: nobody is refused, and nobody answered."""

    def fault(victim: Victim) -> Hit:
        pid = victim.stage.kube.cluster.process(program).pid
        at = now()
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)  # so long it lasts
            still = kernel.state(pid)
        finally:
            os.kill(pid, signal.SIGCONT)
        if still != "T":
            raise VoidRun(f"{program} was in state {still!r}")
        return Hit(at, f"{program} stands still for {seconds:g} s", f"process {pid} was in state T", healed=now())

    return fault


def storage_refuses(seconds: float) -> Callable[[Victim], Hit]:
    """In the S3 server's place stands one that answers everything with 503."""

    def fault(victim: Victim) -> Hit:
        cluster = victim.stage.kube.cluster
        site = state.require(cluster.name)
        at = now()
        processes.stop(cluster.process("versitygw"))
        try:
            asked = _refusing(site.directory / "refused", cluster.name, seconds)
        finally:
            storage.start(site)
            storage.wait_ready(site)
        if not asked:
            raise VoidRun("nobody asked the S3 server meanwhile")
        return Hit(at, f"S3 answers 503 for {seconds:g} s", f"{asked} calls were answered so", healed=now())

    return fault


def _refusing(counter: Path, name: str, seconds: float) -> int:
    """Serves 503 in the hub for so long; returns how many calls were answered."""
    site = state.require(name)
    counter.unlink(missing_ok=True)
    command = [sys.executable, unavailable.__file__, site.addresses.hub, str(S3_PORT), str(counter)]
    refusing = Launcher(site.directory, site.slot, network.HUB).start(
        "s3-refusing", command, inside=network.anchor(site, network.HUB)
    )
    try:
        time.sleep(seconds)  # so long it lasts
        return counter.stat().st_size if counter.exists() else 0
    finally:
        processes.kill(refusing)


def storage_slow(seconds: float, share: float) -> Callable[[Victim], Hit]:
    """The S3 server runs for a small share of the time only."""

    def fault(victim: Victim) -> Hit:
        stage = victim.stage
        pid, at = stage.kube.cluster.process("versitygw").pid, now()
        with _stuttering(pid, share):
            took = []
            while now() < at + seconds:
                began = now()
                stage.s3.list_objects_v2(Bucket=stage.bucket, MaxKeys=1)
                took.append(now() - began)
        slowest = max(took)
        if slowest < 1.0:
            raise VoidRun(f"the slowest of {len(took)} calls took {slowest:.2f} s")
        what = f"the S3 server runs {share:.0%} of the time, for {seconds:g} s"
        return Hit(at, what, f"the slowest of {len(took)} list calls took {slowest:.1f} s", healed=now())

    return fault


@contextlib.contextmanager
def _stuttering(pid: int, share: float, period: float = 2.0) -> Iterator[None]:
    """A process that stops and goes on; in a process of its own, so that our own waits don't matter."""
    stop, go = period * (1 - share), period * share
    script = f"while :; do kill -STOP {pid}; sleep {stop}; kill -CONT {pid}; sleep {go}; done"
    child = os.posix_spawn("/bin/sh", ["sh", "-c", script], os.environ, setpgroup=0)
    try:
        yield
    finally:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.kill(pid, signal.SIGCONT)


def _answers(url: str) -> bool:
    """Whether anybody takes connections at a URL's host and port."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 443, timeout=2)
    try:
        connection.connect()
    except OSError:
        return False
    finally:
        connection.close()
    return True
