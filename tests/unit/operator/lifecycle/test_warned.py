"""What the training warns of reaches the job, once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.api.names import EventReason
from muster.api.trainingjob import TrainingJob
from muster_protocol.launcher_status import WARNINGS_KEPT

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit

DAMAGED = "step 7 can't be restored: s3://models/a/step-7 is missing; trying an older checkpoint"


def running() -> Case:
    case = Case(trainingjob(checkpoint={"uri": "s3://models/a"}))
    case.start()
    return case


def hears(case: Case, *warnings: str) -> list[str]:
    """The Events that follow what the launcher says."""
    assert case.launcher is not None
    before = len(case.notes)
    case.launcher = replace(case.launcher, warnings=warnings)
    case.settle()
    told = [note for note in case.notes[before:] if note.reason is EventReason.TRAINING_WARNING]
    assert all(note.warning for note in told)
    return [note.message for note in told]


def kept(case: Case) -> list[str]:
    return [one.message for one in case.job.status.warnings]


def test_each_warning_is_told_once_and_stays_in_the_status() -> None:
    case = running()
    first = case.now
    assert hears(case, DAMAGED) == [DAMAGED]
    case.later(60)
    assert hears(case, DAMAGED, "slow store") == ["slow store"]
    assert hears(case, DAMAGED, "slow store") == []
    assert hears(case) == [], "another launcher has none yet"
    assert hears(case, "slow store") == []
    assert [(one.message, one.at) for one in case.job.status.warnings] == [(DAMAGED, first), ("slow store", case.now)]


def test_an_operator_that_starts_tells_nothing_again() -> None:
    case = running()
    hears(case, DAMAGED)
    case.job = TrainingJob.from_raw({**case.job.to_raw(), "status": case.job.status.to_raw()})
    assert hears(case, DAMAGED) == []


def test_a_job_without_warnings_is_not_written_for_them() -> None:
    case = running()
    before = case.job.status
    assert hears(case) == []
    assert case.job.status == before
    assert "warnings" not in before.to_raw()


def test_the_newest_few_are_kept_and_none_is_told_in_turns_with_another() -> None:
    case = running()
    older = [f"of the launcher before: {number}" for number in range(WARNINGS_KEPT)]
    assert hears(case, *older) == older
    case.later(60)
    told = hears(case, older[0], "new")
    assert told == ["new"]
    assert kept(case) == [*older[2:], older[0], "new"]
    many = [f"warning {number}" for number in range(3 * WARNINGS_KEPT)]
    assert hears(case, *many) == many[-WARNINGS_KEPT:]
    assert [hears(case, *many) for _ in range(3)] == [[]] * 3
    assert kept(case) == many[-WARNINGS_KEPT:]


def test_what_a_job_says_is_cut_and_cannot_steer_a_terminal() -> None:
    case = running()
    assert hears(case, "", " \n ", "\x1b[2Jgone\n\tor  \u202enot\ud800", "x" * 100_000) == ["[2Jgone or not", "x" * 500]
    assert hears(case, "\x1b[2Jgone or not", "x" * 1000) == []
    assert kept(case) == ["[2Jgone or not", "x" * 500]
