"""What `muster logs` shows: what a job's workers have written, by the job's name alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from muster.api.effective import effective_spec
from muster.api.placement import format_indexes
from muster.cli.printing import note, print_text
from muster.cli.scene import NotThere, connected, look
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable, away
from muster.cluster.overrides import TRAINER
from muster.cluster.views import PodView
from muster.telling.scene import Scene
from muster.telling.wording import one_line

Write = Callable[[str], object]

LOOK_SECONDS: Final = 2.0
"""Between two looks at which pods there are, while some are followed."""
FOLLOWED: Final = 100
"""Logs that are read at once: each is a connection through the API server to a kubelet."""
_SECOND: Final = len("2026-01-02T03:04:05")


async def logs(
    name: str,
    namespace: str | None,
    *,
    workers: Sequence[int],
    rank: int | None,
    follow: bool,
    tail: int | None,
    kubeconfig: str | None,
    context: str | None,
    write: Write = print_text,
) -> int:
    """Print what workers of the job's present gang, else of its last one, have written.

    Args:
        workers: their indexes; empty for all.
        rank: only what this rank has written, whichever worker it is in.
        follow: go on until the job has ended, with the pods that take their places, too.
        tail: only so many of each one's last lines; of the rank's own, where one is named.

    Raises:
        NotThere: no such worker, or it has written nothing yet; says why.
    """
    async with connected(kubeconfig, context) as api:
        scene = await look(api, name, namespace or api.credentials.namespace)
        found = pods_of(scene, worker_of(scene, rank) if rank is not None else workers)
        if follow and len(found) > FOLLOWED:
            raise NotThere(
                f"{name} has {len(found)} workers, and {FOLLOWED} can be followed at once: name them by --worker or "
                "--rank, or leave -f out"
            )
        only = f"[rank {rank}] " if rank is not None and world_size(scene) > 1 else ""
        copies = _Copies(api, write, only, follow=follow)
        if follow:
            await _follow(api, copies, scene, workers if rank is None else worker_of(scene, rank), tail)
        else:
            await asyncio.gather(*(copies.one(pod, tail, several=len(found) > 1) for pod in found))
        if only and copies.silent and tail != 0:
            note(f"rank {rank} has written nothing in {found[0].name}; without --rank all of that worker is shown")
        return 0


@dataclass
class _Place:
    """Up to where a pod's log was read: the moments of its last second's lines, for by the second it is asked for."""

    stamp: str = ""
    second: set[str] = field(default_factory=set)

    def at(self, stamp: str) -> None:
        if stamp[:_SECOND] != self.stamp[:_SECOND]:
            self.second = set()
        self.stamp = stamp
        self.second.add(stamp)


class _Copies:
    """Copies logs of pods, so many at once.

    Attributes:
        silent: nothing has been written yet.
    """

    def __init__(self, api: Api, write: Write, only: str, *, follow: bool) -> None:
        """`only`: how the lines begin that are meant."""
        self._api, self._write, self._only, self._follow = api, write, only, follow
        self._turn = asyncio.Semaphore(FOLLOWED)
        self._places: dict[str, _Place] = {}
        self._lines, self._told_at = 0, -1
        self.silent = True

    def began(self, pod: PodView) -> bool:
        """Whether something of a pod that is followed was read, so that it can go on from there."""
        return pod.name in self._places

    def tell(self, outage: BaseException) -> None:
        """Tell of an outage, once until more is read."""
        if self._told_at != self._lines:
            self._told_at = self._lines
            note(f"{outage}; trying again")

    async def one(self, pod: PodView, tail: int | None, *, several: bool) -> None:
        """`several`: each line says of which worker it is. One that was followed before goes on where it broke off."""
        async with self._turn:
            if self._only and tail is not None and not self.began(pod):
                await self._copy_last(pod, tail)
            else:
                prefix = f"[worker {pod.index}] " if several else ""
                await self._copy(pod, _lines(self._take, prefix, self._only), tail)

    async def _copy_last(self, pod: PodView, tail: int) -> None:
        """A rank's last lines. The server counts those of the whole worker, so the rank's are counted here first."""
        written = 0

        def count(line: str) -> None:
            nonlocal written
            written += 1

        def take(line: str) -> None:
            nonlocal written
            written -= 1
            if written < tail:
                self._take(line)

        await _copy(self._api, pod, _lines(count, "", self._only), follow=False, tail=None)
        await self._copy(pod, _lines(take, "", self._only), None)

    async def _copy(self, pod: PodView, take: Write, tail: int | None) -> None:
        if not self._follow:
            await _copy(self._api, pod, take, follow=False, tail=tail)
            return
        known = self._places.get(pod.name, _Place())
        again = frozenset(known.second)

        def new(line: str) -> None:
            stamp, _, text = line.partition(" ")
            if stamp not in again:
                self._places.setdefault(pod.name, known).at(stamp)
                self._lines += 1
                take(text)

        tail = tail if not again else None
        await _copy(self._api, pod, new, follow=True, tail=tail, stamped=True, since=known.stamp)

    def _take(self, text: str) -> None:
        self.silent = False
        self._write(text)


async def _follow(api: Api, copies: _Copies, scene: Scene, workers: Sequence[int], tail: int | None) -> None:
    """The workers' pods, and those that take their places, until the job has ended.

    Of the first ones it is told that one has no log yet; a later one is tried again.
    """
    name, namespace = scene.job.metadata.name, scene.job.metadata.namespace
    running: dict[asyncio.Task[None], PodView] = {}
    first = pods_of(scene, workers)
    read, announced, known = set[str](), {pod.name for pod in first}, {pod.index for pod in first}
    try:
        while True:
            pods = _those_there(scene, workers)
            for pod in pods:
                if pod.name in read:
                    continue
                if pod.name not in announced and pod.index in known:
                    note(f"worker {pod.index} goes on in {pod.name}")
                read.add(pod.name)
                announced.add(pod.name)
                known.add(pod.index)
                copy = copies.one(pod, tail if pod in first else None, several=len(pods) > 1)
                running[asyncio.create_task(copy)] = pod
            if not running and scene.job.status.finished_at is not None:
                return
            over, again = set[str](), set[str]()
            for task in await _ended(running, all_run=known == {pod.index for pod in running.values()}):
                pod, error = running.pop(task), task.exception()
                if error is None:
                    over.add(pod.name)
                    continue
                if not (isinstance(error, NotThere) or away(error)) or (pod in first and not copies.began(pod)):
                    raise error
                again.add(pod.name)  # it does not run yet, is gone already, or cannot be reached
                if away(error):
                    copies.tell(error)
            try:
                scene = await look(api, name, namespace)
            except NotThere as gone:  # the job was deleted
                note(str(gone))
                return
            except (ApiError, ApiUnreachable) as error:
                if not away(error):
                    raise
                copies.tell(error)
            again |= over & _running(scene)  # not the container has ended, but its kubelet
            if again:
                read -= again
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        for task in running:
            task.cancel()


def _running(scene: Scene) -> set[str]:
    """Pods whose trainers have not ended."""
    if scene.job.status.finished_at is not None:
        return set()
    return {pod.name for pod in scene.pods if pod.phase == "Running" and pod.exit_code is None}


async def _ended(running: Collection[asyncio.Task[None]], *, all_run: bool) -> set[asyncio.Task[None]]:
    """Those that have ended: waited for as long as `all_run`, else a moment, in which others may begin."""
    if not running:
        await asyncio.sleep(LOOK_SECONDS)
        return set()
    moment = None if all_run else LOOK_SECONDS
    return (await asyncio.wait(running, timeout=moment, return_when=asyncio.FIRST_COMPLETED))[0]


def _those_there(scene: Scene, workers: Sequence[int]) -> list[PodView]:
    """As `pods_of`, without those that are not there: the gang waits, or has fewer workers for now."""
    try:
        return [pod for pod in pods_of(scene, ()) if not workers or pod.index in workers]
    except NotThere:
        return []


def world_size(scene: Scene) -> int:
    """Ranks of the gang that runs, else of the one that the job asks for."""
    placement = scene.job.status.placement
    return (placement.workers if placement else scene.job.spec.workers.replicas) * _ranks_per_worker(scene)


def worker_of(scene: Scene, rank: int) -> tuple[int]:
    """The worker that a rank is in."""
    size = world_size(scene)
    if rank >= size:
        raise NotThere(f"{scene.job.metadata.name} has no rank {rank}; its ranks are 0 to {size - 1}")
    return (rank // _ranks_per_worker(scene),)


def _ranks_per_worker(scene: Scene) -> int:
    return effective_spec(scene.job.spec, scene.job.status.defaults).processes_per_worker


def pods_of(scene: Scene, workers: Sequence[int]) -> list[PodView]:
    """The newest pod of each of these workers, of all for none, in the newest gang."""
    name, placement = scene.job.metadata.name, scene.job.status.placement
    generation = placement.generation if placement else max((pod.generation for pod in scene.pods), default=0)
    newest: dict[int, PodView] = {}
    for pod in sorted(scene.pods, key=lambda pod: pod.attempt):
        if pod.generation == generation:
            newest[pod.index] = pod
    if not newest:
        raise NotThere(f"{name} has no pods: {one_line(scene.job)}")
    missing = [index for index in workers if index not in newest]
    if missing:
        there = format_indexes(newest)
        raise NotThere(f"{name} has no pod of worker {missing[0]}; there are those of {there}")
    return [newest[index] for index in (workers or sorted(newest))]


def _lines(write: Write, prefix: str, only: str) -> Write:
    """Writes whole lines, those that begin with `only`, each behind `prefix`."""

    def take(line: str) -> None:
        if line.startswith(only):
            write(prefix + line)

    return take


async def _copy(api: Api, pod: PodView, take: Write, **how: Any) -> None:
    try:
        async for line in api.log(pod.namespace, pod.name, TRAINER, **how):
            take(line)
    except ApiError as error:
        if error.status not in (400, 404):
            raise
        raise NotThere(
            f"worker {pod.index} has no log yet ({error.message}); "
            f"`muster status {pod.job} -n {pod.namespace}` says what it waits for"
        ) from error
