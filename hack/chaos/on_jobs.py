"""Faults of one job: its ranks, its pods, and what people and the platform ask of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from hack.chaos import kernel
from hack.chaos.recipe import CLOCK, DISK, GROWS_AFTER_S
from hack.chaos.stage import now
from hack.chaos.victim import Hit, Victim, VoidRun, inside, name_of, node_of, rank_of, uid_of
from hack.demo import strike
from hack.demo.kube import Json, holds

GONE_S = 150.0
"""Longer than a pod's grace."""


def rank_ended(number: signal.Signals, how: str) -> Callable[[Victim], Hit]:
    """A signal that a rank does not survive."""

    def fault(victim: Victim) -> Hit:
        pod = victim.pod()
        pid = rank_of(pod)
        at = now()
        os.kill(pid, number)
        victim.until_ended(pid)
        return Hit(at, f"{how} of the rank in {name_of(pod)}", f"process {pid} is gone")

    return fault


def rank_stopped(victim: Victim) -> Hit:
    """A rank that stands still and holds up the others."""
    pod = victim.pod()
    pid = rank_of(pod)
    at = now()
    os.kill(pid, signal.SIGSTOP)
    victim.until(f"process {pid}'s standing still", lambda: kernel.state(pid) == "T")
    return Hit(at, f"SIGSTOP to the rank in {name_of(pod)}", f"process {pid} is in state T")


def launcher_killed(victim: Victim) -> Hit:
    """The launcher dies without a word, and the container with it."""
    pod = victim.pod()
    pid = strike.launcher(pod)
    if pid is None:
        raise VoidRun(f"no launcher runs in {name_of(pod)}")
    at = now()
    os.kill(pid, signal.SIGKILL)
    victim.until_ended(pid)
    return Hit(at, f"SIGKILL to the launcher of {name_of(pod)}", f"process {pid} is gone")


def pod_deleted(*flags: str) -> Callable[[Victim], Hit]:
    """`kubectl delete pod`."""

    def fault(victim: Victim) -> Hit:
        pod = victim.pod()
        at = now()
        victim.stage.kube.kubectl("delete", "pod", name_of(pod), "-n", victim.stage.namespace, "--wait=false", *flags)
        _until_gone(victim, [pod])
        what = " ".join(("kubectl delete pod", name_of(pod), *flags))
        return Hit(at, what, f"no pod has the uid {uid_of(pod)} any more")

    return fault


def out_of_memory(victim: Victim) -> Hit:
    """A rank takes memory until the kernel kills it."""
    pod = victim.pod()
    pid = rank_of(pod)
    folder = kernel.cgroup(pid, "memory")
    before = kernel.memory_kills(folder)
    at = now()
    os.kill(pid, signal.SIGUSR2)
    victim.until("the kernel's kill", lambda: kernel.memory_kills(folder) > before, 60)
    return Hit(at, f"the rank in {name_of(pod)} takes all memory", "the kernel counts an OOM kill in its container")


def throttled(victim: Victim) -> Hit:
    """A worker gets a twentieth of a processor for ten seconds."""
    pod = victim.pod()
    folder = kernel.cgroup(rank_of(pod), "cpu")
    before, at = kernel.throttled(folder), now()
    kernel.throttle(folder, 0.05)
    try:
        time.sleep(10)  # so long it lasts
        periods = kernel.throttled(folder) - before
    finally:
        kernel.throttle(folder, None)
    if periods < 10:
        raise VoidRun(f"the kernel made {name_of(pod)} wait in {periods} periods only")
    told = f"the kernel made it wait in {periods} periods"
    return Hit(at, f"{name_of(pod)} gets 5% of a processor for 10 s", told, healed=now())


def disk_full(victim: Victim) -> Hit:
    """No byte more fits where a pod's launcher and ranks keep their files, for ten seconds."""
    pod = victim.pod()
    folder = inside(rank_of(pod), DISK)
    filling = folder / "somebody-elses-file"
    at = now()
    try:
        size = _fill(filling)
        time.sleep(10)  # so long it lasts
        left = os.statvfs(folder).f_bavail
    finally:
        filling.unlink(missing_ok=True)
    if left:
        raise VoidRun(f"{left} blocks were free in {name_of(pod)}")
    told = f"{size >> 20} MiB more filled it, and no block was free"
    return Hit(at, f"{DISK} of {name_of(pod)} is full for 10 s", told, healed=now())


def _fill(path: Path, most: int = 2**28) -> int:
    """Writes until there is no room. Returns the bytes; VoidRun when they are more than `most`."""
    size = 0
    with path.open("wb", buffering=0) as filling:
        while size < most:
            try:
                size += filling.write(b"\0" * 4096)
            except OSError:
                return size
    raise VoidRun(f"{path} took {most >> 20} MiB and was not full")


def clock_jumped(seconds: float) -> Callable[[Victim], Hit]:
    """The clock of the day of one pod jumps, forwards or back, and stays so."""

    def fault(victim: Victim) -> Hit:
        stage, pod, jump = victim.stage, victim.pod(), victim.dice.choice((seconds, -seconds))
        at = now()
        inside(rank_of(pod), CLOCK).write_text(f"{jump:+.0f}\n")

        def jumped() -> bool:
            """Whether the pod's clock has moved against the monotonic one."""
            own = [line.wall - line.at for line in stage.lines(victim.name) if line.pod == name_of(pod)]
            return abs(own[-1] - own[0] - jump) < 5

        victim.until("the jump in the pod's own times", jumped)
        return Hit(
            at, f"the clock of {name_of(pod)} jumps by {jump:+.0f} s", "its journal's times show it", healed=now()
        )

    return fault


def suspended(victim: Victim) -> Hit:
    """`spec.suspend`, until no pod is left, and back."""
    stage, name = victim.stage, victim.name
    before = stage.living(name)
    at = now()
    _suspend(victim, True)
    victim.until("the job's being suspended", lambda: holds(stage.job(name), "Suspended"), GONE_S)
    _until_gone(victim, before)
    gone = now()
    _suspend(victim, False)
    again = now()
    return Hit(at, "suspend: true, and false again", "Suspended, and no pod left", again=again, idle=again - gone)


def _suspend(victim: Victim, wish: bool) -> None:
    patch = json.dumps({"spec": {"suspend": wish}})
    flags = ("-n", victim.stage.namespace, "--type=merge", "-p", patch)
    victim.stage.kube.kubectl("patch", "trainingjob", victim.name, *flags)


def preempted(victim: Victim) -> Hit:
    """A job of higher priority needs all of its room for a moment."""
    stage, before = victim.stage, victim.stage.living(victim.name)
    at = now()
    urgent = stage.urgent(victim.name, seconds=0)
    _until_gone(victim, before)
    gone = now()
    victim.until("the end of the job that came first", lambda: holds(stage.job(urgent), "Succeeded"), GONE_S)
    again = now()
    preemptions = stage.job(victim.name)["status"].get("preemptions")
    if not preemptions:
        raise VoidRun("the job was not preempted")
    told = f"status.preemptions is {preemptions}, and its pods are gone"
    return Hit(at, f"job {urgent} of higher priority takes its room", told, again=again, idle=again - gone)


def preempted_in_a_save(victim: Victim) -> Hit:
    """The same, while a checkpoint is on its way to S3."""
    saving: list[str] = []

    def look() -> bool:
        saving[:] = _unfinished_save(victim)
        return bool(saving)

    victim.until("a save under way", look, 60)
    hit = preempted(victim)
    return Hit(hit.at, f"{hit.what}, while step {saving[0]} was being saved", hit.proof, hit.again, idle=hit.idle)


def _unfinished_save(victim: Victim) -> list[str]:
    """The step of a checkpoint that has objects in S3 and is not committed."""
    stage, committed = victim.stage, victim.stage.committed(victim.name) or 0
    found = stage.s3.list_objects_v2(Bucket=stage.bucket, Prefix=f"{victim.name}/step-").get("Contents", [])
    steps = {int(entry["Key"].split("/")[1].removeprefix("step-")) for entry in found}
    return [str(step) for step in sorted(steps) if step > committed]


def preempted_in_a_restore(victim: Victim) -> Hit:
    """The same, after a suspension, when the ranks run again and have done no step yet."""
    stage, name = victim.stage, victim.name
    first = suspended(victim)
    victim.until("the ranks' start", lambda: any(strike.ranks(pod) for pod in stage.living(name)), GONE_S)
    hit = preempted(victim)
    if any(first.at < line.born < hit.at for line in stage.lines(name)):
        raise VoidRun("the gang trained again before it was preempted")
    what = f"{hit.what}, while it restored after a suspension"
    return Hit(first.at, what, f"{hit.proof}; no step was done in between", hit.again, idle=first.idle + hit.idle)


def shrunk_and_grown(victim: Victim) -> Hit:
    """A job of higher priority needs half of an elastic gang's room for some seconds."""
    stage, name = victim.stage, victim.name
    at = now()
    stage.urgent(name, seconds=15, workers=1)
    victim.until("a smaller gang's training", lambda: any(line.world == 1 for line in stage.lines(name)), GONE_S)

    def grown() -> bool:
        lines = stage.lines(name)
        shrunk = max(line.at for line in lines if line.world == 1)
        return any(line.world > 1 and line.at > shrunk for line in lines)

    victim.until("the gang's growing back", grown, GROWS_AFTER_S + GONE_S)
    what = "a job of higher priority takes one worker's room for 15 s"
    return Hit(at, what, "it trained with 1 worker, then 2", healed=now())


def drained(victim: Victim) -> Hit:
    """`kubectl drain` of the node of one pod; the node stays cordoned until the run's end."""
    stage, pod = victim.stage, victim.pod()
    node = node_of(pod)
    on_it = [other for other in stage.living(victim.name) if node_of(other) == node]

    def uncordon() -> None:
        stage.kube.kubectl("uncordon", node)

    at = now()
    try:
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
        stage.kube.kubectl("drain", node, *flags, f"--pod-selector=muster.dev/job={victim.name}", timeout_s=180)
        _until_gone(victim, on_it)
    except BaseException:
        uncordon()
        raise
    told = f"{node} takes no pods, and those of the job are gone from it"
    return Hit(at, f"kubectl drain {node}", told, mend=uncordon)


def _until_gone(victim: Victim, pods: list[Json]) -> None:
    """Waits until none of these pods holds anything: deleted or ended."""
    uids = {uid_of(pod) for pod in pods}
    victim.until("the pods' end", lambda: not uids & {uid_of(p) for p in victim.stage.living(victim.name)}, GONE_S)
