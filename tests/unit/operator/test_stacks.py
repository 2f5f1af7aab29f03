"""`muster stacks` asks all launchers, and shows ranks that are at the same together."""

from __future__ import annotations

import pytest

from muster.cli.stacks import blocks, show
from muster_protocol import launcher_api
from muster_protocol.messages import Examined, RankSeen
from muster_protocol.wire import encode

from .doors import Doors, pod

pytestmark = pytest.mark.unit

WAITS, READS = '  File "dist.py", line 9 in all_reduce', '  File "train.py", line 7 in read'


def seen(rank: int, stack: str = WAITS, section: str = "step", state: str = "S", still: float = 4.0) -> RankSeen:
    return RankSeen(rank, section, 30, still, "step", state, stack)


class Cluster(Doors):
    """With what the launchers answer, by the index of their pod."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = answers

    def answer(self, pod: str, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        assert (method, path, body) == ("GET", launcher_api.STACKS_PATH, None)
        return self.answers[int(pod.split("-")[2])]


def answer(index: int, *ranks: RankSeen) -> tuple[int, bytes]:
    return 200, encode(Examined(index, False, ranks))


def test_ranks_that_are_at_the_same_stand_together_and_who_is_alone_comes_first() -> None:
    ranks = [seen(0), seen(1), seen(2, READS, still=61.5), seen(3, still=9.0)]
    assert list(blocks(ranks)) == [
        f"rank 2: in step 31, for 1m1s\n{READS}\n\n",
        f"ranks 0-1,3: in step 31, for 9s\n{WAITS}\n\n",
    ]
    assert not list(blocks([]))


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (
            seen(0, "", "none"),
            "without a session, for 4s\n  no stack: only a script that has started a session shows one",
        ),
        (seen(0, "", state="T"), "in step 31, for 4s\n  stopped by a signal"),
        (seen(0, "", "checkpoint", "D"), "after step 30, for 4s\n  no stack: its process does not answer (state D)"),
    ],
)
def test_a_rank_that_shows_no_stack_is_told_with_why(one: RankSeen, told: str) -> None:
    (block,) = blocks([one])
    assert told in block


async def test_all_workers_are_asked_and_one_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    written: list[str] = []
    cluster = Cluster(answer(0, seen(0), seen(1)), answer(1, seen(2), seen(3, READS)))
    assert await show(cluster, [pod(0), pod(1)], None, written.append) == 0
    assert [text.partition(":")[0] for text in written] == ["rank 3", "ranks 0-2"]
    written.clear()
    assert await show(cluster, [pod(1)], 3, written.append) == 0
    assert [text.partition(":")[0] for text in written] == ["rank 3"]
    assert capsys.readouterr().err == ""
    assert await show(Cluster(answer(0, seen(0)), (405, b"no GET")), [pod(0), pod(1)], None, written.append) == 1
    assert capsys.readouterr().err == "muster: worker 1 does not answer (405): no GET\n"
    assert await show(Cluster(answer(0, seen(0))), [pod(0), pod(1, "Succeeded")], None, written.append) == 1
    assert capsys.readouterr().err == "muster: worker 1 has ended (Succeeded)\n"
    assert await show(Cluster(answer(0)), [pod(0)], None, written.append) == 0
    assert "no rank runs just now" in capsys.readouterr().err
