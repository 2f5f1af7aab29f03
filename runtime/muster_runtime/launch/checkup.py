"""Whether the gang's nodes are fit to train, by what each worker has measured before its ranks start. Pure.

What a worker's own figures show is told against fixed bounds; how fast a GPU multiplies, and what a clock shows, only
in comparison with the others. Index 0 judges, since it has all figures when the barrier is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import Final

from muster_protocol import exits
from muster_protocol.counts import counted
from muster_protocol.exits import Cause
from muster_protocol.messages import Ended, Figures

MEBIBYTE: Final = 2**20
LEAST_MEMORY: Final = 256 * MEBIBYTE
LEAST_DISK: Final = 64 * MEBIBYTE
LEAST_SHM: Final = 16 * MEBIBYTE
LEAST_GPU_MEMORY: Final = 0.8
"""Share of a GPU's memory that is free before any rank runs; a process that was left behind takes more."""
MOST_SKEW: Final = 300.0
"""Seconds between a worker's clock and index 0's. S3 refuses signatures that are 15 minutes off."""
OFF: Final = "or leave this check out with spec.health.preflight: false"


@dataclass(frozen=True)
class Finding:
    """Why worker `index` can't train where it is: what was measured, what was expected, how to mend it."""

    index: int
    node: str
    message: str

    def ended(self) -> Ended:
        """The gang's end by it. The node is at fault, whatever the script does."""
        where = f"node {self.node} (worker {self.index})" if self.node else f"worker {self.index}"
        told = f"preflight: {where}: {self.message}; {OFF}"
        return Ended(self.index, exits.EXIT_INFRASTRUCTURE, Cause.NODE.value, told)


def judge(figures: Mapping[int, Figures], *, factor: float) -> list[Finding]:
    """What is wrong, by index. A GPU is slow that multiplies `factor` times slower than the gang's median."""
    rates = [gpu.tflops for one in figures.values() for gpu in one.gpus if gpu.tflops > 0]
    usual = median_high(rates) if rates else 0.0
    return [
        Finding(index, one.node, message)
        for index, one in sorted(figures.items())
        for message in (*_bounds(one), *_slow(one, usual, factor))
    ]


def _bounds(one: Figures) -> Iterator[str]:
    for what, free, least, mend in (
        ("of the node's memory", one.memory_free, LEAST_MEMORY, "see what else runs there, and drain it"),
        ("of disk where the launcher keeps its files", one.disk_free, LEAST_DISK, "free some: old images, logs"),
        ("in /dev/shm", one.shm_free, LEAST_SHM, "see who has left files there, or give the pod a larger one"),
    ):
        if free is not None and free < least:
            yield f"{_mib(free)} {what} are free, {_mib(least)} are needed at least; {mend}"
    if abs(one.skew) > MOST_SKEW:
        yield (
            f"its clock is {abs(one.skew):.0f} s {'ahead of' if one.skew > 0 else 'behind'} index 0's, at most "
            f"{MOST_SKEW:.0f} s are allowed; set it by NTP (chronyc tracking)"
        )
    if one.gpu_error:
        yield f"its GPUs can't be used: {one.gpu_error}; look at nvidia-smi and dmesg (Xid) there, and drain it"
    elif one.gpus and len(one.gpus) < one.gpus_wanted:
        seen = f"{counted(len(one.gpus), 'GPU')} can be used, {one.gpus_wanted} are given to the pod"
        yield f"{seen}; look at nvidia-smi there, and drain it"
    for number, gpu in enumerate(one.gpus):
        if gpu.memory and gpu.free < LEAST_GPU_MEMORY * gpu.memory:
            yield (
                f"{_mib(gpu.free)} of GPU {number}'s {_mib(gpu.memory)} are free before any rank runs, "
                f"{LEAST_GPU_MEMORY:.0%} are expected; end the process that holds the rest (nvidia-smi)"
            )


def _slow(one: Figures, usual: float, factor: float) -> Iterator[str]:
    for number, gpu in enumerate(one.gpus):
        if 0 < gpu.tflops * factor < usual:
            yield (
                f"GPU {number} multiplies at {gpu.tflops:.3g} TFLOP/s, the gang's median is {usual:.3g}; look at its "
                "clocks, power and heat (nvidia-smi -q -d PERFORMANCE), and drain it"
            )


def _mib(size: int) -> str:
    return f"{size / MEBIBYTE:.0f} MiB"
