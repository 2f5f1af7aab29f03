"""`muster stacks`: what the ranks of a job are at now, by their Python stacks."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from muster.api.placement import format_indexes
from muster.cli.doors import Asks, gang_of, open_door
from muster.cli.logs import pods_of, worker_of
from muster.cli.printing import note, print_text
from muster.cli.scene import NotThere
from muster.cluster.views import PodView
from muster.telling.wording import pod_state
from muster_protocol import launcher_api
from muster_protocol.durations import format_duration
from muster_protocol.messages import Examined, RankSeen
from muster_protocol.wire import decode

ASKED_AT_ONCE: Final = 32
_OVER: Final = frozenset({"Succeeded", "Failed"})
_SECTIONS: Final = {
    "join": "joining the others",
    "start": "in its first step",
    "setup": "before its loop",
    "step": "in step {next}",
    "boundary": "done with step {step}, waiting for the others",
    "evaluation": "evaluating after step {step}",
    "checkpoint": "saving or restoring after step {step}",
    "outside": "behind its loop, after step {step}",
    "none": "without a session",
}

Write = Callable[[str], object]


async def stacks(
    name: str,
    namespace: str | None,
    *,
    rank: int | None,
    kubeconfig: str | None,
    context: str | None,
    write: Write = print_text,
) -> int:
    """0 when all workers have answered, else 1. Raises NotThere, ApiError.

    Args:
        rank: this one alone.
    """
    over = f", and its ranks are at nothing any more: muster explain {name}"
    async with gang_of(name, namespace, kubeconfig, context, what="stacks are", over=over) as (api, scene):
        workers = worker_of(scene, rank) if rank is not None else ()
        return await show(api, pods_of(scene, workers), rank, write)


async def show(api: Asks, pods: Sequence[PodView], rank: int | None, write: Write) -> int:
    """Of the workers in these pods."""
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(pod: PodView) -> Examined | NotThere:
        if pod.phase in _OVER:  # nobody is behind its door
            return NotThere(f"worker {pod.index} has ended ({pod_state(pod)})")
        async with turn:
            try:
                door = await open_door(api, pod, launcher_api.STACKS_PATH)
                return decode(Examined, await door.read())
            except NotThere as error:
                return error

    answers = await asyncio.gather(*map(ask, pods))
    silent = [answer for answer in answers if isinstance(answer, NotThere)]
    seen = [one for answer in answers if isinstance(answer, Examined) for one in answer.ranks]
    for block in blocks(one for one in seen if rank in (None, one.rank)):
        write(block)
    for trouble in silent:
        note(str(trouble))
    if not seen and not silent:
        note("no rank runs just now; `muster status` says what the job waits for")
    return 1 if silent else 0


def blocks(ranks: Iterable[RankSeen]) -> Iterator[str]:
    """Ranks that are at the same are one block: of a gang that hangs those stand first who are alone."""
    alike: defaultdict[tuple[str, int, str, str], list[RankSeen]] = defaultdict(list)
    for one in ranks:
        alike[one.section, one.step, one.state if not one.stack else "", one.stack].append(one)
    for group in sorted(alike.values(), key=lambda group: (len(group), group[0].rank)):
        first, numbers = group[0], format_indexes(sorted(one.rank for one in group))
        still = max(one.still for one in group)
        where = _SECTIONS.get(first.section, first.section).format(step=first.step, next=first.step + 1)
        age = f", for {format_duration(still)}" if still >= 1 else ""
        head = f"rank{'s' if len(group) > 1 else ''} {numbers}: {where}{age}"
        yield f"{head}\n{first.stack or f'  {_no_stack(first)}'}\n\n"


def _no_stack(one: RankSeen) -> str:
    if one.state in ("T", "t"):
        return "stopped by a signal, or by a debugger"
    if one.section == "none":
        return "no stack: only a script that has started a session shows one"
    return f"no stack: its process does not answer (state {one.state or 'unknown'})"
