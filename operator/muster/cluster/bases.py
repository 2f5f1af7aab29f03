"""Gangs with a safe base in the planner's arrays: the base is a row, and what there is beyond it another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from muster.cluster.jobs import BEYOND, BeyondInput, JobInput
from muster.scheduling.snapshot import TopologyMode


def parted(jobs: Iterable[JobInput]) -> list[JobInput]:
    """The same jobs, with those of two kinds of nodes as two: the base, which is the job, and behind it what it has, or
    is promised, beyond that."""
    found: list[JobInput] = []
    for job in jobs:
        found.append(job)
        if job.beyond is not None and (job.placed or job.promised):
            found[-1] = _base_of(job)
            if len(job.placed) > job.base or len(job.promised) > job.promised_base:
                found.append(_beyond_of(job, job.beyond))
    return found


def _base_of(job: JobInput) -> JobInput:
    return replace(
        job,
        workers=job.base if job.placed else job.promised_base,
        placed=job.placed[: job.base],
        promised=job.promised[: job.promised_base],
        attempts=tuple(item for item in job.attempts if item[0] < job.base),
        lost=tuple(index for index in job.lost if index < job.base),
        sizes=None,
    )


def _beyond_of(job: JobInput, more: BeyondInput) -> JobInput:
    base, promised = job.base, job.promised[job.promised_base :]
    goes_on = job.run.beneficiary == job.uid  # though perhaps without any of these
    beneficiary = job.uid + BEYOND if goes_on else job.run.beneficiary
    # Where one domain must hold the gang, the base tells which: see `muster.scheduling.beyond.beside_their_bases`.
    required = job.mode is TopologyMode.REQUIRED
    return replace(
        job,
        uid=job.uid + BEYOND,
        workers=len(job.placed[base:]) or len(promised),
        node_filter=more.node_filter,
        flavour=more.flavour,
        mode=TopologyMode.UNCONSTRAINED if required else job.mode,
        level="" if required else job.level,
        placed=job.placed[base:],
        promised=promised,
        attempts=tuple((index - base, attempt) for index, attempt in job.attempts if index >= base),
        lost=tuple(index - base for index in job.lost if index >= base),
        sizes=(more.least, more.most, more.step) if more.most else None,
        terms=replace(job.terms, alternatives=()),
        run=replace(job.run, beneficiary=beneficiary),
        beyond=None,
        base=0,
        promised_base=0,
    )
