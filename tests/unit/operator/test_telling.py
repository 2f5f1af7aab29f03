"""What a waiting job is told, and when it is told anew."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from muster.api.effective import EffectiveSpec, effective_spec
from muster.api.queue_position import Ahead, Lacking, QueuePosition
from muster.api.trainingjob import TrainingJob
from muster.controllers.telling import Word, growth_of, in_window, noticeable
from muster.scheduling.plan import Almost, Basis, Change, ChangeKind, Stay, StayReason, Waiting, WaitReason
from muster.scheduling.snapshot import FOREVER

pytestmark = pytest.mark.unit

NOW = 1_800_000_000.0
WORD = Word("InsufficientCapacity", "needs 8, there are 7", position=200, expected=NOW + 3600, basis="progress")


def seen(word: Word, **changes: object) -> bool:
    return noticeable(word.told(), replace(word, **changes), NOW)  # type: ignore[arg-type]


def test_the_planners_word_becomes_the_status() -> None:
    waiting = Waiting(
        "u",
        WaitReason.TOPOLOGY_UNSATISFIED,
        "one rack lacks 1",
        3,
        expected=NOW + 60.7,
        basis=Basis.LIMITS,
        almost=(Almost("rack-3", 7, 1),),
        changes=(Change(ChangeKind.WORKERS, "7", "ask for 7 workers"),),
        resource="cpu",
        missing=1500,
        level="rack",
        domain="rack-3",
        placeable=7,
    )
    told = Word.of(waiting, "one rack lacks 1", ahead=(Ahead(job="research/a", why="before"),)).told()
    assert (told.position, told.reason, told.basis) == (3, "TopologyUnsatisfied", "limits")
    assert told.to_raw()["changes"] == [{"kind": "workers", "value": "7", "text": "ask for 7 workers"}]
    assert told.to_raw()["ahead"] == [{"job": "research/a", "why": "before"}]
    assert told.to_raw()["lacking"] == {
        "resource": "cpu",
        "amount": "1500m",
        "level": "rack",
        "domain": "rack-3",
        "placeable": 7,
    }
    assert told.expected_start is not None
    assert told.expected_start.timestamp() == NOW + 60
    assert (told.almost[0].domain, told.almost[0].placeable, told.almost[0].lacking) == ("rack-3", 7, 1)


def test_who_has_a_window_is_expected_to_start_while_that_is_open() -> None:
    """Room may come in the middle of the day: then the job starts at the next evening."""

    def made(**more: Any) -> EffectiveSpec:
        spec = {"image": "i", "command": ["c"], "workers": {"replicas": 1}, **more}
        return effective_spec(TrainingJob.from_raw({"metadata": {"name": "nightly"}, "spec": spec}).spec)

    nightly = made(window={"start": "0 19 * * *", "duration": "10h"})
    day = datetime(2026, 11, 26, tzinfo=timezone.utc)

    def expected(at: datetime, spec: EffectiveSpec) -> datetime | None:
        return in_window(replace(WORD, expected=at.timestamp()), spec, 60.0).told().expected_start

    noon, night, end = day.replace(hour=12), day.replace(hour=2), day.replace(hour=4, minute=59)
    evening = day.replace(hour=19)
    assert [expected(at, nightly) for at in (noon, night, end)] == [evening, night, evening]
    assert expected(noon, made()) == noon
    assert in_window(replace(WORD, expected=FOREVER), nightly, 60.0).told().expected_start is None


def test_who_is_not_in_the_order_has_no_position() -> None:
    word = Word("QueueNotFound", "there is no TrainingQueue 'x'")
    assert word.told().position is None
    assert "position" not in word.told().to_raw()
    assert not noticeable(word.told(), word, NOW), "nothing new is no reason to write"
    assert noticeable(word.told(), replace(word, position=1), NOW)


def test_an_unknown_start_is_no_date() -> None:
    told = replace(WORD, expected=FOREVER).told()
    assert told.expected_start is None


def test_the_first_word_and_a_new_reason_are_always_told() -> None:
    assert noticeable(None, WORD, NOW)
    assert seen(WORD, reason="QuotaExceeded")


def test_far_down_a_tenth_of_the_place_counts_and_the_wording_does_not() -> None:
    assert not seen(WORD, position=185)
    assert seen(WORD, position=180)
    assert not seen(WORD, message="needs 8, there are 6")


def test_among_the_first_ten_every_place_and_every_word_counts() -> None:
    near = replace(WORD, position=9)
    assert seen(near, position=8)
    assert seen(near, message="needs 8, there are 6")
    assert not seen(near)


def test_an_expected_start_is_told_anew_when_it_moves_by_a_fifth_of_the_wait() -> None:
    assert not seen(WORD, expected=NOW + 3600 + 500)
    assert seen(WORD, expected=NOW + 3600 + 1000)
    assert seen(WORD, expected=FOREVER)
    assert not seen(replace(WORD, expected=NOW + 30), expected=NOW + 80)


def test_who_lacks_quota_is_not_told_of_room() -> None:
    waiting = Waiting("u", WaitReason.QUOTA_EXCEEDED, "", 1, resource="nvidia.com/gpu", missing=8)
    told = Word.of(waiting, "").told()
    assert told.lacking == Lacking(resource="nvidia.com/gpu", amount="8")
    assert Word.of(waiting._replace(resource="", missing=0), "").told().lacking is None


def test_who_is_ahead_is_no_news_by_itself() -> None:
    near = replace(WORD, position=3)
    assert not noticeable(near.told(), replace(near, ahead=(Ahead(job="research/a", why="holds"),)), NOW)
    assert replace(near, ahead=(Ahead(job="research/a"),)) == near, "what is as it was told is not looked at again"


def test_changes_that_an_operator_wrote_as_words_alone_are_read() -> None:
    read = QueuePosition.model_validate({"changes": ["7 workers instead of 8 would find room now"]})
    assert [(each.kind, each.text) for each in read.changes] == [("", "7 workers instead of 8 would find room now")]


def test_why_a_gang_is_not_larger_becomes_the_status() -> None:
    kept = Stay(StayReason.BEHIND_OTHERS, "there is room, but it is kept", 6, not_before=NOW + 60.2, blocker="u")
    assert growth_of(kept, {"u": "research/big"}).to_raw() == {
        "reason": "BehindOthers",
        "message": "there is room, but it is kept (kept for research/big)",
        "workers": 6,
        "notBefore": "2027-01-15T08:01:01Z",
        "keptFor": "research/big",
    }
    lacks = Stay(StayReason.INSUFFICIENT_CAPACITY, "it lacks", 6, 0.0, "memory", 2**30, "rack", "rack-3", 1)
    assert growth_of(lacks, {}).to_raw()["lacking"] == {
        "resource": "memory",
        "amount": "1073741824",
        "level": "rack",
        "domain": "rack-3",
        "placeable": 1,
    }
    quota = growth_of(Stay(StayReason.QUOTA_EXCEEDED, "it lacks", 6, 0.0, "nvidia.com/gpu", 8), {})
    assert quota.lacking == Lacking(resource="nvidia.com/gpu", amount="8"), "how many would fit was not looked at"
