"""A PriorityClass that is not there is told at once of a job that has run, and takes its priority from nobody."""

from __future__ import annotations

import pytest

from muster.api.names import ConditionType, EventReason

from .cases import Case, trainingjob

pytestmark = pytest.mark.unit

KIND = ConditionType.PRIORITY_CLASS_MISSING
NONE = "there is no PriorityClass 'hihg' for jobs; did you mean 'high'? There are: high"


def told(case: Case) -> list[str]:
    return [note.message for note in case.notes if note.reason is EventReason.PRIORITY_CLASS_NOT_FOUND and note.warning]


def test_a_class_that_is_not_there_is_told_once_and_the_old_priority_stays() -> None:
    case = Case(trainingjob(priorityClassName="high"), priority=10)
    case.start()
    assert case.job.status.priority == 10
    case.edit(priorityClassName="hihg")
    case.priority, case.no_priority = 0, NONE
    case.settle()
    assert case.phase == "Running"
    assert case.is_true(KIND)
    message = f"{NONE}; the job keeps the priority that it has, 10, until there is or it names another"
    assert told(case) == [message] == [case.message(KIND)]
    assert case.job.status.priority == 10
    writes = case.writes
    case.settle()
    assert case.writes == writes

    case.edit(priorityClassName="low")
    case.priority, case.no_priority = 5, ""
    case.settle()
    assert case.reason(KIND) == "PriorityClassFound"
    assert not case.is_true(KIND)
    assert case.job.status.priority == 5


def test_another_class_that_is_not_there_is_told_anew() -> None:
    case = Case(trainingjob(priorityClassName="high"), priority=10)
    case.start()
    case.no_priority = NONE
    case.settle()
    case.edit(priorityClassName="ihgh")
    case.no_priority = NONE.replace("hihg", "ihgh")
    case.settle()
    assert len(told(case)) == 2


def test_a_suspended_job_is_judged_anew() -> None:
    case = Case(trainingjob(priorityClassName="high"), priority=10)
    case.start()
    case.edit(suspend=True)
    case.settle()
    case.vanish()
    case.settle()
    assert case.phase == "Suspended"
    assert case.job.status.priority is None


def test_a_job_without_a_class_says_nothing() -> None:
    case = Case(trainingjob())
    case.start()
    assert case.reason(KIND) == ""
