"""What `muster logs` shows: what a job's workers have written, by the job's name alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from muster.api.effective import effective_spec
from muster.api.placement import format_indexes
from muster.cli.printing import note, print_text
from muster.cli.scene import NotThere, connected, look
from muster.cluster.client import Api
from muster.cluster.errors import ApiError
from muster.cluster.overrides import TRAINER
from muster.cluster.views import PodView
from muster.telling.scene import Scene
from muster.telling.wording import one_line

Write = Callable[[str], object]

FOLLOWED: Final = 100
"""Logs that are read at once: each is a connection through the API server to a kubelet."""


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
        follow: go on until they end.
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
        prefixes = [f"[worker {pod.index}] " if len(found) > 1 else "" for pod in found]
        turn = asyncio.Semaphore(FOLLOWED)
        silent = True

        def write_down(text: str) -> None:
            nonlocal silent
            silent = False
            write(text)

        async def one(pod: PodView, prefix: str) -> None:
            async with turn:
                if only and tail is not None:
                    await _copy_last(api, pod, write_down, only, follow=follow, tail=tail)
                else:
                    await _copy(api, pod, _lines(write_down, prefix, only), follow=follow, tail=tail)

        await asyncio.gather(*map(one, found, prefixes))
        if only and silent and tail != 0:
            note(f"rank {rank} has written nothing in {found[0].name}; without --rank all of that worker is shown")
        return 0


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


async def _copy_last(api: Api, pod: PodView, write: Write, only: str, *, follow: bool, tail: int) -> None:
    """A rank's last lines. The server counts those of the whole worker, so the rank's are counted here first."""
    written = 0

    def count(line: str) -> None:
        nonlocal written
        written += 1

    def take(line: str) -> None:
        nonlocal written
        written -= 1
        if written < tail:
            write(line)

    await _copy(api, pod, _lines(count, "", only), follow=False, tail=None)
    await _copy(api, pod, _lines(take, "", only), follow=follow, tail=None)


async def _copy(api: Api, pod: PodView, take: Write, *, follow: bool, tail: int | None) -> None:
    try:
        async for line in api.log(pod.namespace, pod.name, TRAINER, follow=follow, tail=tail):
            take(line)
    except ApiError as error:
        if error.status not in (400, 404):
            raise
        raise NotThere(
            f"worker {pod.index} has no log yet ({error.message}); "
            f"`muster status {pod.job} -n {pod.namespace}` says what it waits for"
        ) from error
