"""Decides whether the demo has shown what it promises. Pure: it compares what was read, and reads nothing."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """`facts` are what was found to hold, `faults` what was not; both in plain sentences."""

    facts: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.faults


@dataclass(frozen=True)
class Story:
    """What happened to the job that lost a worker.

    Attributes:
        succeeded, reference_succeeded: whether the two jobs' Succeeded conditions are True.
        killed_at: step that the gang had reached when the worker was killed.
        committed: steps that the killed gang had committed, in any order: a save under way at the kill among them.
        resumed_from: the step that the new incarnation restored, None when it began anew.
        losses, reference: loss by step (from 0) of the job, and of a run that nobody disturbed.
        total: steps that each run should have done.
    """

    succeeded: bool
    reference_succeeded: bool
    killed_at: int | None
    committed: tuple[int, ...]
    resumed_from: int | None
    losses: Mapping[int, float]
    reference: Mapping[int, float]
    total: int


def judge(story: Story) -> Verdict:
    """The job succeeded, resumed at the last committed step, and its losses are bit by bit the undisturbed run's."""
    facts: list[str] = []
    faults: list[str] = []

    def check(holds: bool, fact: str, fault: str) -> None:
        facts.append(fact) if holds else faults.append(fault)

    check(story.succeeded, "the job succeeded", "the job did not succeed")
    check(story.reference_succeeded, "the undisturbed run succeeded", "the undisturbed run did not succeed")
    if story.killed_at is None:
        faults.append("no worker was killed: the run ended before")
    last = max(story.committed, default=None)
    check(
        story.resumed_from is not None and story.resumed_from == last,
        f"it resumed at step {story.resumed_from}, the last one that the killed gang had committed",
        f"it resumed at step {story.resumed_from}, but the last one that the killed gang had committed was {last}",
    )
    for name, found in (("job", story.losses), ("undisturbed run", story.reference)):
        missing = [step for step in range(story.total) if step not in found]
        check(
            not missing,
            f"the {name} has a loss for each of its {story.total} steps",
            f"the {name} has no loss for {len(missing)} of {story.total} steps, the first is {missing[:1]}",
        )
    faults += _differences(story)
    if not faults:
        after = story.total - (story.resumed_from or 0)
        facts.append(f"all {after} losses after the resume are bit by bit those of the undisturbed run")
    return Verdict(tuple(facts), tuple(faults))


def _differences(story: Story) -> list[str]:
    common = sorted(set(story.losses) & set(story.reference))
    wrong = [step for step in common if _bits(story.losses[step]) != _bits(story.reference[step])]
    if not wrong:
        return []
    step = wrong[0]
    return [
        f"{len(wrong)} of {len(common)} losses differ from the undisturbed run's, first at step {step}:"
        f" {story.losses[step]!r} and {story.reference[step]!r}"
    ]


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)
