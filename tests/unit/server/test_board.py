"""Snapshots: what was published stays as it was."""

from __future__ import annotations

import pytest

from muster.server.board import Board

from .samples import World, job

pytestmark = pytest.mark.unit


def test_a_snapshot_does_not_change_when_jobs_do() -> None:
    board, world = Board(), World()
    board.job(("n", "a"), job("n", "a"))
    assert board.shown is None
    board.publish(world, "default")
    first = board.shown
    board.publish(world, "default")
    assert board.shown is not None
    assert first is not None
    assert board.shown.jobs is first.jobs  # nothing is sorted anew
    board.job(("n", "a"), job("n", "a", phase="Running"))
    board.job(("n", "b"), job("n", "b"))
    board.publish(world, "default")
    assert [row.phase for row in board.shown.jobs] == ["Running", "Queued"]
    assert [row.phase for row in first.jobs] == ["Queued"]
    board.job(("n", "a"), None)
    board.publish(world, "default")
    assert [row.name for row in board.shown.jobs] == ["b"]
