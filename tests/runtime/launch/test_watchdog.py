"""When ranks count as hung, and who of them holds up the others: the pure parts."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol.exits import Cause
from muster_protocol.messages import Ended, Examined, RankSeen
from muster_runtime import stacks
from muster_runtime.launch import captures, config, hang, verdict
from muster_runtime.launch.watchdog import AUTO_SECONDS, NOTICE_SECONDS, Limits, StepTimes, Watchdog
from muster_runtime.pulse import Beat, Pulse, PulseReader, Section

pytestmark = pytest.mark.unit

AUTO = Limits(None, None, None, None)


def watchdog(limits: Limits) -> Watchdog:
    return Watchdog(limits, interval=1.0, now=0.0)


def stay(dog: Watchdog, beats: dict[int, Beat | None], until: int, since: int = 0) -> int | None:
    """Looks every second; the second in which all were stuck first, or None."""
    for second in range(since, until):
        dog.look(float(second), beats)
        if dog.stuck:
            return second
    return None


@pytest.mark.parametrize(
    ("section", "seconds"),
    [
        (Section.JOIN, 10),
        (Section.START, 10),
        (Section.STEP, 20),
        (Section.BOUNDARY, 20),
        (Section.EVALUATION, 30),
        (Section.CHECKPOINT, 40),
    ],
)
def test_each_section_has_a_time_of_its_own(section: Section, seconds: int) -> None:
    assert stay(watchdog(Limits(10, 20, 30, 40)), {0: Beat(section, 1)}, 100) == seconds + 1


@pytest.mark.parametrize("limits", [AUTO, Limits(10, 20, 30, 40), Limits()])
def test_after_its_loop_a_rank_may_take_for_ever(limits: Limits) -> None:
    assert stay(watchdog(limits), {0: Beat(Section.OUTSIDE, 1)}, 5000) is None


def test_a_script_without_a_session_is_watched_only_when_a_start_has_a_time() -> None:
    for section in (Section.NONE, Section.SETUP):
        assert stay(watchdog(AUTO), {0: Beat(section)}, 5000) is None
        assert stay(watchdog(Limits(10, 20, 30, 40)), {0: Beat(section)}, 100) == 11


def test_who_waits_for_an_evaluation_does_not_hang() -> None:
    dog = watchdog(Limits(10, 20, 300, 40))
    assert stay(dog, {0: Beat(Section.EVALUATION, 1), 1: Beat(Section.BOUNDARY, 1)}, 200) is None
    assert stay(dog, {0: Beat(Section.STEP, 2), 1: Beat(Section.BOUNDARY, 1)}, 400, since=200) == 221


def test_a_rank_that_moves_is_not_stuck_and_one_that_has_ended_is_not_asked() -> None:
    dog = watchdog(Limits(10, 20, 30, 40))
    for second in range(100):
        dog.look(float(second), {0: Beat(Section.STEP, 1), 1: Beat(Section.STEP, second)})
        assert not dog.stuck
    dog.look(100.0, {0: Beat(Section.STEP, 1)})
    assert dog.stuck


def test_what_the_launcher_sleeps_through_is_nobodys_stillness() -> None:
    dog = watchdog(Limits(10, 20, 30, 40))
    beats: dict[int, Beat | None] = {0: Beat(Section.STEP, 1)}
    dog.look(0.0, beats)
    dog.look(3600.0, beats)
    assert dog.still(0) == 2.0
    assert not dog.stuck


def test_other_processes_begin_anew() -> None:
    dog = watchdog(Limits(10, 20, 30, 40))
    assert stay(dog, {0: Beat(Section.STEP, 1)}, 100) is not None
    dog.begin_anew(100.0)
    assert not dog.stuck
    assert stay(dog, {0: Beat()}, 200, since=100) == 111, "from their own start"


def test_a_rank_that_is_seen_to_compile_may_take_as_long_as_a_start() -> None:
    dog = watchdog(Limits(60, 20, 30, 40))
    beats: dict[int, Beat | None] = {0: Beat(Section.STEP, 1)}
    assert stay(dog, beats, 100) == 21
    dog.excuse([0])
    assert stay(dog, beats, 200, since=22) == 61
    assert stay(dog, {0: Beat(Section.STEP, 2)}, 300, since=62) == 83, "the next step has its own time again"


def steps(seconds: float, count: int) -> Beat:
    return Beat(Section.STEP, beats=count, step=count, steps=count, seconds=seconds * count)


@pytest.mark.parametrize(
    ("step_seconds", "found"),
    [(0.1, 30.0 - NOTICE_SECONDS), (2.0, 30.0 - NOTICE_SECONDS), (20.0, 60.0 - NOTICE_SECONDS)],
)
def test_auto_is_three_usual_steps_or_half_a_minute(step_seconds: float, found: float) -> None:
    dog = watchdog(AUTO)
    for count in range(1, 20):
        dog.look(float(count), {0: steps(step_seconds, count)})
    assert dog.limit(0) == pytest.approx(found)


def test_before_it_is_known_what_is_usual_a_step_may_take_as_long_as_a_start() -> None:
    dog = watchdog(AUTO)
    dog.look(0.0, {0: steps(1.0, 2)})
    assert dog.limit(0) == AUTO_SECONDS


def test_what_was_usual_before_a_restart_still_is() -> None:
    dog = watchdog(AUTO)
    for count in range(10):
        dog.look(float(count), {0: steps(20.0, count)})
    dog.begin_anew(10.0)
    dog.look(11.0, {0: Beat(Section.STEP, 5)})
    assert dog.limit(0) == pytest.approx(60.0 - NOTICE_SECONDS)


def test_with_auto_who_hung_at_a_step_gets_an_evaluations_time_there_after_the_restart() -> None:
    """An evaluation that the script calls none: it costs one restart, not the run."""
    dog = watchdog(Limits(None, None, 200, None))
    for count in range(1, 1001):
        dog.look(float(count), {0: steps(0.1, count)})
    assert stay(dog, {0: steps(0.1, 1000)}, 2000, since=1001) == 1000 + 27
    dog.found()
    assert dog.stuck, "it is not forgiven where it hangs"
    dog.begin_anew(1100.0)
    dog.look(1101.0, {0: steps(0.1, 999)})
    assert dog.limit(0) == pytest.approx(30.0 - NOTICE_SECONDS)
    assert stay(dog, {0: steps(0.1, 1000)}, 1222, since=1102) is None
    dog.look(1222.0, {0: steps(0.1, 1001)})
    assert dog.limit(0) == pytest.approx(2 * 119 - NOTICE_SECONDS), "what a step outlived, another may need as well"


def test_with_a_time_of_its_own_a_step_hangs_as_soon_the_second_time() -> None:
    dog = watchdog(Limits(10, 20, 30, 40))
    for began in (0, 100):
        dog.begin_anew(float(began))
        assert stay(dog, {0: Beat(Section.STEP, 7, step=7)}, began + 100, since=began + 1) == began + 22
        dog.found()


def test_every_tenth_step_may_be_slow() -> None:
    times = StepTimes()
    for number in range(100):
        times.add(1, 40.0 if number % 10 == 9 else 2.0)
    assert times.usual() == 40.0
    for _ in range(100):
        times.add(1, 2.0)
    assert times.usual() == 2.0, "what is long past doesn't count"


@given(st.integers(-5, 2**64), st.floats())
def test_nonsense_in_a_pulse_makes_no_time(count: int, seconds: float) -> None:
    times = StepTimes()
    times.add(count, seconds)
    usual = times.usual()
    assert usual is None or 0 <= usual < math.inf


def test_limits_come_from_the_environment() -> None:
    given_ = {"MUSTER_HANG_START": "auto", "MUSTER_HANG_STEP": "90", "MUSTER_HANG_EVALUATION": "0"}
    found = config.read(given_, ("true",)).hang
    assert found == Limits(None, 90.0, math.inf, math.inf)
    assert found.watched
    assert not config.read({}, ("true",)).hang.watched


# ------------------------------------------------------------------ the pulse


def test_a_pulse_is_read_as_it_was_written(tmp_path: Path) -> None:
    reader = PulseReader(tmp_path, 2)
    assert reader.read(1) == Beat()
    pulse = Pulse(1, str(tmp_path))
    pulse.begin(500)
    pulse.step_done(501)
    for step in (502, 503):
        pulse.step_opens()
        pulse.enter(Section.BOUNDARY)
        pulse.step_done(step)
    with pulse.during(Section.CHECKPOINT):
        beat = reader.read(1)
    assert beat is not None
    assert (beat.section, beat.step, beat.steps) == (Section.CHECKPOINT, 503, 2), "the first step tells nothing"
    after = reader.read(1)
    assert after is not None
    assert (after.section, after.beats > beat.beats) == (Section.STEP, True)
    assert reader.read(0) == Beat(), "another rank's"


def test_a_pulse_without_a_launcher_or_without_room_is_written_nowhere(tmp_path: Path) -> None:
    Pulse(0, None).enter(Section.START)
    Pulse(0, str(tmp_path)).enter(Section.START)
    reader = PulseReader(tmp_path, 1)
    Pulse(7, str(tmp_path)).enter(Section.START)
    assert reader.read(0) == Beat()
    (tmp_path / "pulse").write_bytes(b"\xff" * 64)
    assert PulseReader(tmp_path, 1).read(0) == Beat(), "made anew"


def test_after_the_loop_no_loader_makes_an_evaluation_of_it(tmp_path: Path) -> None:
    reader, pulse = PulseReader(tmp_path, 1), Pulse(0, str(tmp_path))
    for section, seen in ((Section.STEP, Section.EVALUATION), (Section.OUTSIDE, Section.OUTSIDE)):
        pulse.enter(section)
        pulse.evaluates()
        beat = reader.read(0)
        assert beat is not None
        assert beat.section is seen


# ------------------------------------------------------------------ who holds up the others

WAITS = """\
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/app/train.py", line 7 in main"""
LOOPS = '  File "/app/model.py", line 31 in forward\n  File "/app/train.py", line 6 in main'


LOADS = """\
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 947 in wait
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 113 in get
  File "/x/site-packages/torch/utils/data/dataloader.py", line 1275 in _try_get_data
  File "/x/site-packages/torch/utils/data/dataloader.py", line 732 in __next__
  File "/muster/lib/muster_runtime/data/loader.py", line 190 in batches
  File "/app/train.py", line 5 in main"""


def seen(rank: int, section: str = "step", step: int = 16, state: str = "S", stack: str = WAITS) -> RankSeen:
    limit = section if section in ("start", "evaluation", "checkpoint") else "step"
    return RankSeen(rank, section, step, 31.2, limit, state, stack)


@pytest.mark.parametrize(
    "culprit",
    [
        seen(2, state="T", stack=""),
        seen(2, state="D", stack=""),
        seen(2, step=15),
        seen(2, stack=LOOPS, state="R"),
        seen(2, stack="", state="R"),
    ],
    ids=["stopped", "in the kernel", "behind", "endless loop", "without a stack"],
)
def test_the_rank_that_the_others_wait_for_is_named(culprit: RankSeen) -> None:
    polls = '  File "/usr/lib/python3.11/pathlib.py", line 1235 in exists\n'
    reads = seen(0, state="D", stack=polls + WAITS)  # it shows its stack, so the call returns
    workers = [Examined(0, True, (reads, seen(1))), Examined(1, True, (culprit, seen(3)))]
    found = hang.judge(workers)
    assert (found.index, found.rank, found.cause, found.crash) == (1, 2, Cause.HANG.value, True)
    assert found.message.startswith(f"rank 2 hangs in the step after step {culprit.step}: it did not get on for 31 s")
    assert "; the others wait for it" in found.message
    assert found.message.count("If it may take as long, raise spec.hang.step") == (culprit.state not in "TD")


def test_who_is_at_the_boundary_has_done_the_step() -> None:
    found = hang.judge([Examined(0, True, (seen(0, "boundary", stack=LOOPS), seen(1, stack=LOOPS)))])
    assert found.rank == 1
    assert "at /app/model.py:31 in forward" in found.message
    assert found.traceback == LOOPS


def test_a_stopped_rank_is_overdue_wherever_it_is() -> None:
    for limits, seconds in ((Limits(None, None, None, None), 26.0), (Limits(600, 40, 600, 600), 40.0)):
        for section in (Section.START, Section.STEP, Section.EVALUATION, Section.CHECKPOINT):
            watched, beats = Watchdog(limits, 1.0, 0.0), {0: Beat(section, 1, 5), 1: Beat(section, 1, 5)}
            for now in range(1, int(seconds) + 2):
                watched.look(now, beats, [1])
                assert not watched.stopped
            watched.look(seconds + 2, beats, [1])
            assert watched.stopped
            watched.look(seconds + 3, beats, [])
            assert not watched.stopped, "it goes on"


@pytest.mark.parametrize(
    ("culprit", "known_by"),
    [
        (seen(0, state="R", stack=LOOPS), "hang (step) at model.py:31 in forward"),
        (seen(0, "evaluation", state="R", stack=LOOPS), "hang (evaluation) at model.py:31 in forward"),
        (seen(0, state="R"), ""),
        (seen(0, "checkpoint", state="R", stack=LOOPS), ""),
        (seen(0, state="T", stack=""), ""),
        (seen(0, state="D", stack=LOOPS), ""),
        (seen(0, state="S", stack=LOOPS), ""),
        (seen(0, state="S", stack=LOADS), ""),
    ],
    ids=["loops", "evaluates", "others", "the store", "stopped", "a disk", "a mount or a socket", "a data loader"],
)
def test_a_hang_is_known_again_by_its_place_only_where_the_script_waits_for_nothing(
    culprit: RankSeen, known_by: str
) -> None:
    found = hang.judge([Examined(0, True, (culprit,))])
    assert found.signature == known_by
    told = verdict.followed(replace(found, alike=2), 0)
    assert (told.cause, told.signature, told.alike) == (Cause.HANG, known_by, 2)


def test_where_all_spin_for_a_collective_on_the_gpu_the_hang_is_not_the_scripts() -> None:
    spinning = '  File "/app/train.py", line 9 in main'  # at loss.item()
    ranks = tuple(seen(rank, state="R", stack=spinning) for rank in range(4))
    assert hang.judge([Examined(0, True, ranks)]).signature == ""
    behind = replace(ranks[2], step=15)
    assert (
        hang.judge([Examined(0, True, (*ranks[:2], behind, ranks[3]))]).signature == "hang (step) at train.py:9 in main"
    )


def test_who_waits_for_data_is_told_so() -> None:
    message = hang.judge([Examined(0, True, (seen(0, stack=LOADS), seen(1)))]).message
    assert "31 s, at /app/train.py:5 in main, where it waits for its data loader; the others wait for it." in message


def test_whose_script_has_ended_and_waits_for_its_threads_is_told_so() -> None:
    """As after sys.exit(3): nothing in the stack is the script's, and no other spec.hang would help."""
    shuts_down = '  File "/usr/lib/python3.11/threading.py", line 1590 in _shutdown'
    message = hang.judge([Examined(0, True, (seen(0, "boundary"), seen(1, stack=shuts_down)))]).message
    told = "its script has ended, and Python waits for its threads that are no daemons; the others wait for it."
    assert message.startswith("rank 1 hangs in the step after step 16: it did not get on for 31 s: " + told)
    assert message.endswith(". End them first, or start them with daemon=True")


def test_where_nobody_stands_out_all_are_told() -> None:
    found = hang.judge([Examined(0, True, (seen(0), seen(1)))])
    assert found.message.startswith("all 2 ranks hang in the step after step 16, and none of them stands out; rank 0")
    assert "at /app/train.py:7 in main" in found.message, "the script's own line, not torch's"


def test_several_that_hold_up_the_others_are_told_together() -> None:
    ranks = tuple(seen(rank, state="T", stack="") if rank % 2 else seen(rank) for rank in range(24))
    message = hang.judge([Examined(0, True, ranks)]).message
    assert message.startswith(
        "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 4 more hang in the step after step 16; rank 1 did not"
    )


@given(
    st.lists(
        st.builds(
            RankSeen,
            st.integers(0, 9),
            st.text(),
            st.integers(),
            st.floats(0, 1e9),
            st.text(),
            st.text(max_size=1),
            st.text(),
        ),
        min_size=1,
    )
)
def test_any_answers_give_a_verdict(ranks: list[RankSeen]) -> None:
    assert hang.judge([Examined(0, True, tuple(ranks))]).cause == "hang"


def test_a_stack_in_torchs_compiler_is_one() -> None:
    assert hang.compiles('  File "/x/site-packages/torch/_inductor/codecache.py", line 1 in compile\n' + LOOPS)
    assert not hang.compiles(LOOPS)
    assert not hang.compiles(WAITS)


DUMP = """
Thread 0x00007f51 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f50 (most recent call first):
  File "/app/model.py", line 31 in forward
  File "/app/train.py", line 6 in main
"""


def test_of_a_dump_the_main_thread_is_the_last() -> None:
    assert captures.main_thread(DUMP) == LOOPS
    assert captures.main_thread("") == ""


def test_a_stopped_process_is_not_asked_for_its_collectives(tmp_path: Path) -> None:
    """It would be waited for in vain, and the gang with it."""
    with subprocess.Popen(["sleep", "60"]) as stopped, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears:
        try:
            stopped.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
            ears.bind(str(stacks.flight_ears(tmp_path, 0)))
            assert asyncio.run(captures.flight({0: stopped.pid}, tmp_path)) == {}
            with pytest.raises(BlockingIOError):
                ears.recv(1, socket.MSG_DONTWAIT)
        finally:
            stopped.kill()


def test_the_worker_that_held_up_the_others_tells_the_hang() -> None:
    first = Ended(1, 1, Cause.HANG.value, "rank 2 hangs", 2, crash=True, traceback=LOOPS)
    facts = verdict.followed(first, 1)
    assert (facts.cause, facts.exit_code, facts.rank, facts.traceback) == (Cause.HANG, 1, 2, LOOPS)
    assert verdict.followed(first, 0).cause is Cause.PEER
