"""What launchers and the operator send each other comes back as it was; what doesn't fit is refused in a sentence."""

from __future__ import annotations

import pytest

from muster_protocol.idleness import Busy, Idleness
from muster_protocol.launcher_status import Kept, MemoryTier, Phase, Status
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
        (Stop, "[]", "Stop: expected a JSON object, got list"),
        (Stop, "{", "Expecting"),
        (Stop, '{"reason": "whim", "grace_seconds": 1}', "'whim' is not a valid StopReason"),
        (Stop, '{"reason": "preempt"}', "Stop: .*missing.*grace_seconds"),
        (Restart, '{"incarnation": 1, "first": 7}', "Ended: expected a JSON object, got int"),
        (Member, '{"index": 0, "pod_uid": "u", "address": "a", "copy": 7}', "expected a JSON array, got int"),
        (Member, '{"index": 0, "pod_uid": "u", "address": "a", "copy": [null]}', "int"),
    ],
)
def test_what_does_not_fit_is_refused(kind: type[object], raw: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(kind, raw.encode())
