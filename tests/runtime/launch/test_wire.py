"""What launchers and the operator send each other comes back as it was; what doesn't fit is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from muster_protocol.idleness import Busy, Idleness
from muster_protocol.launcher_status import Checkpoint, Facts, Kept, MemoryTier, Phase, Status, implausible
from muster_protocol.messages import (
    Ended,
    Figures,
    GpuFigures,
    Heartbeat,
    Member,
    Pace,
    Release,
    Restart,
    Stop,
    StopReason,
)
from muster_protocol.wire import decode, encode

pytestmark = pytest.mark.runtime

MEMBER = Member(1, "u", "10.0.0.1", copy=(1, 2, 3), figures=Figures("n", gpus=(GpuFigures(1, 2, 3.0),)))


@pytest.mark.parametrize(
    "message",
    [
        MEMBER,
        Release(2, "10.0.0.1", 29500, keeper=MEMBER),
        Stop(StopReason.SUSPEND, 10.0),
        Restart(2, Ended(0, 1, "user")),
        Facts({"muster.queue": "vision"}, hourly=3),
        Status(Phase.RUNNING, 1, 1, 0, lost=(3,), warnings=("a",), memory_tier=MemoryTier(Kept.PEER)),
        Heartbeat(1, "u", paces=(Pace(1, 5, 2.0, 1.0),), idleness=Idleness(60.0, (Busy(90, 0.0),))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_it_comes_back_as_it_was(message: object) -> None:
    assert decode(type(message), encode(message)) == message


def test_what_a_newer_version_says_besides_is_ignored() -> None:
    assert decode(Stop, b'{"reason": "preempt", "grace_seconds": 3.0, "new": "x"}') == Stop(StopReason.PREEMPT, 3.0)


@pytest.mark.parametrize(
    ("kind", "raw", "said"),
    [
        (Stop, "[]", "expected a JSON object, got array"),
        (Stop, "{", "Expecting"),
        (Stop, "[" * 4096, "more levels than can be read"),
        (Stop, '{"reason": "whim", "grace_seconds": 1}', "'whim' is not a valid StopReason"),
        (Stop, '{"reason": "preempt"}', "Stop: .*missing.*grace_seconds"),
        (Restart, '{"incarnation": 1, "first": 7}', "Restart.first: expected a JSON object, got integer"),
        (Member, '{"index": 0, "pod_uid": "u", "address": "a", "copy": 7}', "expected a JSON array, got integer"),
        (Member, '{"index": 0, "pod_uid": "u", "address": "a", "copy": [null]}', "Member.copy: .* integer, got null"),
        (Member, '{"index": "0", "pod_uid": "u", "address": "a"}', "Member.index: .* integer, got string"),
        (Member, '{"index": true, "pod_uid": "u", "address": "a"}', "Member.index: .* integer, got boolean"),
        (Member, '{"index": 9223372036854775808, "pod_uid": "u", "address": "a"}', "no room in 64 bits"),
        (Stop, '{"reason": "preempt", "grace_seconds": null}', "Stop.grace_seconds: .* number, got null"),
        (Stop, '{"reason": "preempt", "grace_seconds": NaN}', "NaN is no number in JSON"),
        (Facts, '{"tags": {"a": 1}}', "Facts.tags: .* string, got integer"),
    ],
)
def test_what_does_not_fit_is_refused(kind: type[object], raw: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(kind, raw.encode())


def test_halves_of_surrogate_pairs_are_no_text_that_can_be_passed_on() -> None:
    told = encode(Facts({"a \ud83d": "\udc80"}, currency="€ 😀"))
    assert decode(Facts, told) == Facts({"a ?": "?"}, currency="€ 😀")
    assert decode(Facts, '{"currency": "\ud800"}'.encode("utf-8", "surrogatepass")).currency == "?"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({}, ""),
        ({"restarts": 3, "failures": 2, "memory_failures": 1}, ""),
        ({"restarts": 2**20}, "restarts is 1048576; it has to be at least 0 and below 1048576"),
        ({"restarts": -1}, "restarts is -1"),
        ({"restarts": 1, "failures": 2}, "failures is 2; it has to be at least 0 and below 2"),
        ({"restarts": 1, "memory_failures": 2}, "memory_failures is 2"),
        ({"incarnation": -1}, "incarnation is -1"),
        ({"step": -1}, "step is -1"),
        ({"steps_per_second": -0.5}, "steps_per_second is -0.5"),
        ({"checkpoint": Checkpoint(3, "s3://b/p", 1e12)}, "checkpoint.committed_at is 1000000000000.0"),
    ],
)
def test_a_status_that_no_launcher_can_have_seen_is_known(said: dict[str, Any], wrong: str) -> None:
    fields: dict[str, Any] = {"phase": Phase.RUNNING, "generation": 1, "incarnation": 1, "index": 0} | said
    found = implausible(Status(**fields))
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)
