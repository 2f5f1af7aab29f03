"""What a fault cost is read off the journal of steps, and the table says no more than was measured."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hack.chaos import journal, results, rows, table
from hack.chaos.__main__ import row_named
from hack.chaos.journal import Line
from hack.chaos.measure import Losses, Recovery, compare, recovery, training
from hack.chaos.results import Outcome, Result, Target, misses
from hack.chaos.rows import REFERENCE_STEPS, ROWS

pytestmark = pytest.mark.unit

PACE = 0.1


def life(born: float, first: int, last: int, *, at: float | None = None, world: int = 2) -> list[Line]:
    """The lines of all ranks of a gang that began at `born` and did these steps, from `at` on."""
    start = born + 1 if at is None else at
    return [
        Line(
            at=start + PACE * (step - first),
            step=step,
            rank=rank,
            world=world,
            pod=f"pod-{rank}",
            born=born,
            loss=(step / (rank + 1)).hex(),
            samples=tuple(range(12 * step // world * rank, 12 * step // world * (rank + 1))),
        )
        for step in range(first, last + 1)
        for rank in range(world)
    ]


REFERENCE = life(0, 0, 99)


def test_a_killed_gang_loses_what_it_does_again_and_the_time_until_a_new_step() -> None:
    lines = sorted(life(0, 0, 50) + life(8, 41, 90, at=10.0))  # step 50 was done at 6.0 s
    found = recovery(lines, fault_at=6.05, again_at=6.05, healed_at=6.05)
    assert found is not None
    assert found.ended
    assert (found.reached, found.resumed, found.steps_lost) == (50, 41, 10)
    assert found.seconds == pytest.approx(10.0 + 10 * PACE - 6.05)
    assert found.usual == pytest.approx(PACE)


def test_a_step_that_another_rank_finishes_after_the_fault_is_not_a_new_one() -> None:
    lines = sorted(life(0, 0, 51))  # step 51 was done at 6.1 s, after the fault
    assert recovery(lines, fault_at=6.05, again_at=6.05, healed_at=6.05) is None
    lines = sorted(lines + life(8, 41, 51, at=10.0))
    assert recovery(lines, fault_at=6.05, again_at=6.05, healed_at=6.05) is None
    found = recovery(sorted(lines + life(8, 52, 52, at=12.0)), fault_at=6.05, again_at=6.05, healed_at=6.05)
    assert found is not None
    assert found.reached == 51


def test_a_gang_that_trains_on_lost_nothing_but_its_longest_pause() -> None:
    lines = sorted(life(0, 0, 50) + [replace(line, born=0.0) for line in life(0, 51, 99, at=8.0)])
    assert recovery(lines[:-20], fault_at=6.05, again_at=6.05, healed_at=12.0) is None
    found = recovery(lines, fault_at=6.05, again_at=6.05, healed_at=7.0)
    assert found is not None
    assert not found.ended
    assert found.steps_lost == 0
    assert found.seconds == pytest.approx(8.0 - 6.05)


def test_what_a_job_waited_for_by_order_does_not_count() -> None:
    lines = sorted(life(0, 0, 50) + life(30, 51, 60, at=33.0))
    found = recovery(lines, fault_at=6.05, again_at=29.0, healed_at=6.05)
    assert found is not None
    assert (found.steps_lost, found.seconds) == (0, pytest.approx(4.0))


def test_a_gang_that_stands_still_does_not_train() -> None:
    lines = life(0, 0, 50)
    assert training(lines, now=7.0)
    assert not training(lines, now=60.0)
    assert not training([], now=1.0)


def test_losses_are_compared_bit_by_bit_in_every_life() -> None:
    lines = sorted(life(0, 0, 50) + life(8, 41, 90, at=10.0))
    assert compare(lines, REFERENCE, 91) == (Losses.BITWISE, "")
    wrong = replace(lines[60], loss=(1e-9).hex())
    how, why = compare([*lines[:60], wrong, *lines[61:]], REFERENCE, 91)
    assert how is Losses.DIFFERENT
    assert f"rank {wrong.rank} in step {wrong.step}" in why


def test_a_step_that_was_left_out_is_a_difference() -> None:
    lines = sorted(life(0, 0, 50) + life(8, 52, 90, at=10.0))
    how, why = compare(lines, REFERENCE, 91)
    assert (how, "step 51" in why) == (Losses.DIFFERENT, True)


def test_a_gang_of_another_size_has_to_see_the_same_samples() -> None:
    smaller = life(8, 51, 90, at=10.0, world=1)
    lines = sorted(life(0, 0, 50) + smaller)
    assert compare(lines, REFERENCE, 91) == (Losses.SAME_SAMPLES, "")
    wrong = replace(smaller[3], samples=(1, 2, 3))
    assert compare(sorted([*lines, replace(wrong, at=99.0)]), REFERENCE, 91)[0] is Losses.DIFFERENT


def test_a_line_that_is_still_being_written_is_left_out() -> None:
    line = life(0, 4, 4)[0]
    text = json.dumps(asdict(line))
    assert journal.parse([f"{text}\n{text[:20]}"]) == (line,)


def test_what_was_missed_is_said() -> None:
    slow = Recovery(reached=50, resumed=30, seconds=12.0, usual=0.1, ended=True)
    found = misses(Target(seconds=10, steps_lost=10, new_pods=0), slow, 1, Losses.DIFFERENT, "step 3")
    assert found == (
        "12.0 s to the next new step, not 10 s",
        "21 steps lost, not 10",
        "1 new pods, not 0",
        "losses: step 3",
    )
    assert misses(Target(), slow, 1, Losses.BITWISE, "") == ()
    assert misses(Target(losses=Losses.SAME_SAMPLES), slow, 1, Losses.SAME_SAMPLES, "") == ()
    assert misses(Target(), slow, 1, Losses.SAME_SAMPLES, "") == ("losses: same samples",)


RUN = Result(
    row="rank-sigkill",
    seed=3,
    when="2026-01-02T03:04:05Z",
    commit="abc",
    version="v1",
    machine="2 cores",
    load=1.5,
    fault="SIGKILL of the rank in a-0",
    seconds=4.0,
    steps_lost=5,
    gpu_seconds_lost=8.0,
    new_pods=0,
    losses="bitwise",
    outcome=Outcome.MET.value,
)


def test_results_are_kept_and_the_newest_of_a_seed_counts(tmp_path: Path) -> None:
    path = tmp_path / "reliability" / "runs.jsonl"
    newer = replace(RUN, seconds=5.0)
    void = replace(RUN, outcome=Outcome.VOID.value)
    for result in (RUN, newer, void):
        results.append(result, path)
    kept = results.read(path)
    assert kept == [RUN, newer, void]
    assert results.newest(kept, "rank-sigkill") == [newer]
    assert results.void(kept, "rank-sigkill") == []
    assert results.void([void], "rank-sigkill") == [void]
    assert results.known(kept, "rank-sigkill", 3, "v1") == newer
    assert results.known(kept, "rank-sigkill", 3, "v2") is None
    assert results.known(kept, "rank-sigkill", 3) == newer
    assert results.known([void], "rank-sigkill", 3, "v1") is None


def test_runs_add_up_and_rows_with_the_fewest_come_first() -> None:
    killed, drained = ROWS["rank-sigkill"], ROWS["drain"]
    kept = [replace(RUN, seed=1), replace(RUN, seed=2, version="v0"), replace(RUN, seed=3, outcome=Outcome.VOID.value)]
    wanted = rows.missing([killed, drained], (1, 2, 3), kept, None)
    assert wanted == [(drained, 1), (drained, 2), (killed, 3), (drained, 3)]
    fresh = rows.missing([killed, drained], (1, 2, 3), kept, "v1")
    assert fresh == [(drained, 1), (killed, 2), (drained, 2), (killed, 3), (drained, 3)]


def test_the_table_has_the_worst_of_each_and_names_what_was_missed() -> None:
    worse = replace(RUN, seed=4, seconds=14.0, steps_lost=9, outcome=Outcome.MISSED.value, why="too slow")
    entry = table.Entry("rank-sigkill", "a rank is killed", Target(10, 10, 0), [RUN, worse])
    void = replace(RUN, row="drain", outcome=Outcome.VOID.value, why="no sign of the fault")
    never = table.Entry("drain", "a node is drained", Target(), [], [void])
    text = table.render([entry, never])
    assert "| 2 | 9.0 s, 14.0 s | 9 |" in text
    assert "1 of 2" in text
    assert "seed 4, 2026-01-02T03:04:05Z: too slow" in text
    assert "a node is drained" not in text
    assert "`drain`, seed 3, 2026-01-02T03:04:05Z: no sign of the fault" in text
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter"
    assert table.replaced(page, text) == f"before\n{table.BEGIN}\n\n{text}\n\n{table.END}\nafter"
    with pytest.raises(ValueError, match="no place"):
        table.replaced("nothing", text)


def test_losses_that_differ_once_are_told_of_the_whole_row() -> None:
    entry = table.Entry("drain", "d", Target(), [RUN, replace(RUN, seed=4, losses="different")])
    assert "| NO |" in table.render([entry])


def test_the_page_shows_what_is_on_record() -> None:
    known = results.read()
    page = table.PAGE.read_text()
    assert table.replaced(page, table.render(rows.entries(known))) == page, (
        "make the table anew: python -m hack.chaos --table"
    )


def test_the_fault_of_a_row_comes_before_its_job_ends_and_the_reference_is_as_long() -> None:
    for row in ROWS.values():
        assert row.steps.stop < row.recipe.steps <= REFERENCE_STEPS


def test_a_row_that_is_not_there_is_answered_with_the_one_that_was_meant() -> None:
    assert row_named("rank-sigkill") == "rank-sigkill"
    with pytest.raises(argparse.ArgumentTypeError, match="no row 'rank-sigkil'; did you mean 'rank-sigkill'"):
        row_named("rank-sigkil")
