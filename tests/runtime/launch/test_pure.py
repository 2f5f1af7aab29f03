"""The launcher's pure parts: what tracebacks tell, what exit facts say, who may join, when ranks are ended."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol import env, exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_status import WARNINGS_KEPT
from muster_protocol.messages import (
    Ended,
    GangState,
    Member,
    Membership,
    Release,
    Reliability,
    Restart,
    Stop,
    StopReason,
)
from muster_protocol.numerics import TEXT_LEFT, Numerics
from muster_runtime import report
from muster_runtime.control import ControlReader, ControlWriter
from muster_runtime.launch import config, environment, termination, tracebacks, verdict
from muster_runtime.launch.command import parse
from muster_runtime.launch.membership import Barrier, Roll
from muster_runtime.launch.node_hours import NodeHours
from muster_runtime.launch.progress import Progress
from muster_runtime.launch.ranks import Rank, Ranks
from muster_runtime.launch.state import State
from muster_runtime.launch.stopping import DYING_SECONDS, Deadlines, Stopping
from muster_runtime.launch.warned import Warned
from muster_runtime.reporter import Reporter

pytestmark = pytest.mark.unit

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=9000)


@given(st.sampled_from(Cause), TEXT, TEXT, st.integers(0, 255), st.none() | st.integers(0, 2**63 - 1))
def test_a_termination_message_fits_and_keeps_what_is_not_text(
    cause: Cause, message: str, traceback: str, code: int, step: int | None
) -> None:
    unsound = Numerics(3, 1, message[:TEXT_LEFT])
    facts = ExitFacts(cause, code, message, 3, -9, traceback, step, step, 7, stored=step, loss="0.25")
    text = exits.encode(replace(facts, numerics=unsound))
    assert len(text.encode()) <= exits.TERMINATION_MESSAGE_LIMIT
    read = exits.decode(text)
    assert read is not None
    assert (read.cause, read.exit_code, read.rank, read.rank_exit_code) == (cause, code, 3, -9)
    assert (read.step, read.committed_step, read.stored, read.loss, read.incarnation) == (step, step, step, "0.25", 7)
    assert read.numerics == unsound
    assert read.message == message or len(read.message) < len(message)
    assert read.traceback == traceback or len(read.traceback) < len(traceback)


@pytest.mark.parametrize("said", [None, 3, {"skipped": -1}, {"skipped": 1, "rollbacks": True, "last": ""}, {"last": 3}])
def test_numerics_that_are_none_are_left_out(said: object) -> None:
    text = json.dumps({**json.loads(exits.encode(ExitFacts(Cause.USER, 1, "boom"))), "numerics": said})
    read = exits.decode(text)
    assert read is not None
    assert (read.message, read.numerics) == ("boom", None)


@given(TEXT | st.recursive(st.none() | st.integers() | TEXT, lambda x: st.lists(x) | st.dictionaries(TEXT, x)))
def test_any_other_termination_message_is_not_taken_for_ours(content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    assert exits.decode(text) is None


@pytest.mark.parametrize("opens", ["[", '{"muster": 1, "spent": ['])
def test_more_brackets_than_python_reads_are_nobodys_word(opens: str) -> None:
    deep = opens + "[" * (exits.TERMINATION_MESSAGE_LIMIT - len(opens))
    assert exits.decode(deep) is None
    assert report.decode(deep.encode()) is None


def test_halves_of_surrogate_pairs_are_no_text_that_can_be_passed_on() -> None:
    """The operator tells a failure's message in an Event, and puts it into a status."""
    half, unsound = "a \ud83d b", Numerics(1, 0, "\udc80")
    text = exits.encode(ExitFacts(Cause.USER, 1, half, traceback=half, signature=half, numerics=unsound))
    read = exits.decode(text)
    assert read is not None
    assert (read.message, read.traceback, read.signature) == ("a ? b", "a ? b", "a ? b")
    assert read.numerics == Numerics(1, 0, "?")
    whole = exits.decode(exits.encode(ExitFacts(Cause.USER, 1, "grün 😀")))
    assert whole is not None
    assert whole.message == "grün 😀"


def lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")


SIMPLE = """
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("bad")
ValueError: bad
"""


def test_the_last_traceback_is_found_among_other_lines() -> None:
    found = tracebacks.last_traceback(["noise", *lines(SIMPLE.replace("bad", "first")), "x", *lines(SIMPLE), "later"])
    assert found.startswith("Traceback")
    assert tracebacks.exception_line(found) == "ValueError: bad"


def test_a_failure_commands_no_terminal_and_its_colours_hide_nothing() -> None:
    said = """
Traceback (most recent call last):
  File \x1b[35m"train.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35mstep\x1b[0m
    \x1b[31mraise\x1b[0m ValueError("bad")
\x1b[1;35mValueError\x1b[0m: \x1b[35mb\u202ea\x07d\x1b[0m\x1b]0;title\x07
"""
    failure = verdict.failure(0, 1, lines(said), killed_for_memory=False)
    assert failure.message == "rank 0 exited with code 1: ValueError: bad"
    assert failure.traceback.split("\n")[1] == '  File "train.py", line 3, in step'
    assert failure.signature == "ValueError: bad at train.py:3 in step"


def test_a_kill_for_want_of_memory_is_known_again_and_any_other_kill_is_not() -> None:
    killed = [verdict.failure(rank, -signal.SIGKILL, ["x"], killed_for_memory=True) for rank in (0, 1)]
    assert killed[0].signature == killed[1].signature != ""
    assert killed[0].cause is Cause.OUT_OF_MEMORY
    assert verdict.failure(0, -signal.SIGKILL, ["x"], killed_for_memory=False).signature == ""


def test_an_earlier_traceback_ends_where_the_next_one_begins() -> None:
    """Of a data loader without a main guard: the killed worker's own is what tells."""
    own = """
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122, in spawn_main
RuntimeError: An attempt has been made to start a new process
"""
    gone = """
Traceback (most recent call last):
  File "train.py", line 9, in <module>
RuntimeError: DataLoader worker (pid 9) exited unexpectedly with exit code 1
"""
    found = tracebacks.last_traceback([*lines(own), *lines(gone)])
    assert tracebacks.exception_line(found) == "RuntimeError: An attempt has been made to start a new process"
    assert "train.py" not in found


WATCHDOG = """
[rank1]:[E1128 19:00:00.123 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
[rank1]:[E1128 19:00:01.223 ProcessGroupNCCL.cpp:698] [Rank 1] we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [Rank 1] Process group watchdog thread terminated with exception
"""


def test_a_collective_that_nccl_gave_up_is_a_hang_and_tells_which_it_was() -> None:
    failure = verdict.failure(1, -signal.SIGABRT, lines(WATCHDOG.replace("\\\n", "")), killed_for_memory=False)
    assert (failure.cause, failure.echo, failure.crash, failure.signature) == (Cause.HANG, False, True, "")
    assert "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milli" in failure.message
    assert "Process group watchdog" in failure.last_words


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("terminate called\n  what():  basic_string: no room\nlast", "SIGABRT: basic_string: no room"),
        ("x.cpp:7: run: Assertion `n > 0' failed.\nAborted", "SIGABRT: x.cpp:7: run: Assertion `n > 0' failed."),
        ("saving\n", "SIGABRT"),
    ],
)
def test_why_a_process_aborted_itself_is_told(said: str, told: str) -> None:
    failure = verdict.failure(1, -signal.SIGABRT, said.split("\n"), killed_for_memory=False)
    assert failure.message == f"rank 1 was ended by {told}"
    assert failure.cause is Cause.USER


@pytest.mark.parametrize(
    ("before", "error", "after", "told"),
    [
        (
            "Loss.cu:245: nll: [0,0,0] Assertion `t < n_classes` failed.",
            "CUDA error: device-side assert triggered",
            "",
            "CUDA error: device-side assert triggered (Loss.cu:245: nll: [0,0,0] Assertion `t < n_classes` failed.)",
        ),
        (
            "",
            "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error",
            "ncclUnhandledCudaError: failed.\nLast error:\nout of memory",
            "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error (out of memory)",
        ),
        ("Last error:", "NCCL error in: NCCLUtils.cpp:94", "", "NCCL error in: NCCLUtils.cpp:94"),
    ],
)
def test_what_tells_more_than_the_exceptions_line_stands_beside_it(
    before: str, error: str, after: str, told: str
) -> None:
    text = f'{before}\nTraceback (most recent call last):\n  File "t.py", line 1\nRuntimeError: {error}\n{after}'
    failure = verdict.failure(0, 1, text.strip("\n").split("\n"), killed_for_memory=False)
    assert failure.message == f"rank 0 exited with code 1: RuntimeError: {told}"


def test_of_a_launcher_within_the_command_what_it_started_is_told() -> None:
    outer = SIMPLE.replace(
        "ValueError: bad", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n===="
    )
    found = tracebacks.last_traceback([*lines(SIMPLE), *lines(outer)])
    assert tracebacks.exception_line(found) == "ValueError: bad"
    assert "ChildFailedError" in tracebacks.last_traceback(lines(outer)), "nothing else was said"
    run = "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' returned non-zero exit status 1."
    found = tracebacks.last_traceback([*lines(SIMPLE), *lines(SIMPLE.replace("ValueError: bad", run))])
    assert tracebacks.exception_line(found) == "ValueError: bad"


GROUP = """
  + Exception Group Traceback (most recent call last):
  |   File "train.py", line 11, in <module>
  |   File "train.py", line 10, in run
  | ExceptionGroup: unhandled errors (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "train.py", line 2, in first
    | ValueError: bad a
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "train.py", line 3, in second
    | KeyError: 'bad b'
    +------------------------------------
"""


def test_of_an_exception_group_a_member_is_told() -> None:
    found = tracebacks.last_traceback(["  | a table of the script's", *lines(GROUP), "later"])
    assert tracebacks.exception_line(found) == "KeyError: 'bad b'"
    assert tracebacks.signature("KeyError", found) == "KeyError at train.py:3 in second"
    bare = [line for line in lines(GROUP) if "Traceback (most" not in line or "Group" in line]
    found = tracebacks.last_traceback(bare)
    assert tracebacks.exception_line(found) == "ExceptionGroup: unhandled errors (2 sub-exceptions)"
    assert "KeyError: 'bad b'" in found


def test_torchs_rank_prefix_is_taken_away() -> None:
    found = tracebacks.last_traceback([f"[rank3]: {line}" for line in lines(SIMPLE)])
    assert found == SIMPLE.strip("\n")


def test_an_ignored_exception_at_exit_is_not_the_cause() -> None:
    noise = ["Exception ignored in: <function Pool.__del__ at 0x7f>", *lines(SIMPLE.replace("bad", "noise"))]
    assert tracebacks.exception_line(tracebacks.last_traceback([*lines(SIMPLE), *noise])) == "ValueError: bad"


def test_of_a_chain_of_exceptions_the_last_is_named() -> None:
    between = ["", "During handling of the above exception, another exception occurred:", ""]
    chain = [*lines(SIMPLE), *between, *lines(SIMPLE.replace("ValueError: bad", "KeyError: 'x'"))]
    assert tracebacks.exception_line(tracebacks.last_traceback(chain)) == "KeyError: 'x'"


FROM_A_WORKER = """
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    for step, batch in session.steps(10, loader):
{kind}: Caught {kind} in DataLoader worker process 1.
Original Traceback (most recent call last):
{frames}{what}

"""


@pytest.mark.parametrize("deep", [1, 15, 40])
def test_of_what_torch_carries_out_of_a_worker_its_own_exception_is_told(deep: int) -> None:
    frames = "".join(f'  File "data.py", line {line}, in read\n    read(index)\n' for line in range(deep))
    text = FROM_A_WORKER.format(kind="ValueError", frames=frames, what="ValueError: no image in shard-7/00012.jpg")
    failure = failed(1, "".join(f"[rank2]: {line}\n" for line in lines(text)))
    assert failure.message == "rank 2 exited with code 1: ValueError: no image in shard-7/00012.jpg"
    assert failure.traceback.endswith("ValueError: no image in shard-7/00012.jpg")
    assert failure.signature == f"ValueError: no image in shard-#/#.jpg at data.py:{deep - 1} in read"


SPAWNED = """
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122, in spawn_main
    exitcode = _main(fd, parent_sentinel)
  File "train.py", line 3, in <module>
    session = muster.start()
{said}
"""
LOST = """
Traceback (most recent call last):
  File "dataloader.py", line 1293, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
RuntimeError: DataLoader worker (pid 64) exited unexpectedly with exit code 1. Details are lost due to multiprocessing.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 5, in <module>
    for batch in loader:
RuntimeError: DataLoader worker (pid(s) 64) exited unexpectedly
"""


def test_why_a_worker_could_not_start_is_told_not_that_it_is_gone() -> None:
    said = "muster_runtime.errors.UsageError: train.py:3: put muster.start() below the guard"
    found = failed(1, SPAWNED.format(said=said) + LOST)
    assert found.message == f"rank 2 exited with code 1: {said}"
    assert not found.crash, "another start would meet it, too"
    logged = SIMPLE + LOST  # of an exception that the script has lived through
    assert failed(1, logged).message.endswith("DataLoader worker (pid(s) 64) exited unexpectedly")
    other = SPAWNED.format(said=said) + SIMPLE
    assert failed(1, other).message == "rank 2 exited with code 1: ValueError: bad"


def test_a_worker_that_is_refused_memory_has_run_out_of_it() -> None:
    what = "RuntimeError: [enforce fail at alloc_cpu.cpp:9] . DefaultCPUAllocator: can't allocate memory: 9 bytes"
    text = FROM_A_WORKER.format(kind="RuntimeError", frames='  File "data.py", line 1, in read\n', what=what)
    assert failed(1, text).cause is Cause.OUT_OF_MEMORY


def test_no_traceback_no_exception() -> None:
    assert tracebacks.last_traceback(["killed"]) == ""
    assert tracebacks.exception_line("") == ""


@given(st.lists(st.text(max_size=40) | st.just("Traceback (most recent call last):"), max_size=30))
def test_reading_tracebacks_never_fails(some: list[str]) -> None:
    found = tracebacks.last_traceback(some)
    tracebacks.exception_line(found)
    assert len(found.split("\n")) <= 2 * tracebacks.TRACEBACK_LINES or not found


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:3",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "torch.distributed.DistNetworkError: The client socket has timed out while trying to connect to (x, 1)",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
        "RuntimeError: gloo: Timed out waiting 1800000ms for recv operation to complete",
        "[W] TCPStore.cpp:106 recvValue failed on SocketImpl: failed to recv, got 0 bytes",
    ],
)
def test_a_lost_peer_is_an_echo(text: str) -> None:
    assert tracebacks.is_echo(text)


@pytest.mark.parametrize("text", ["ValueError: bad", "ConnectionResetError: [Errno 104] Connection reset by peer", ""])
def test_the_users_own_errors_are_no_echo(text: str) -> None:
    assert not tracebacks.is_echo(text)


def failed(code: int, stderr: str = "", oom: bool = False) -> verdict.Failure:
    return verdict.failure(2, code, lines(stderr), killed_for_memory=oom)


def raised(what: str) -> str:
    return SIMPLE.replace("ValueError: bad", what)


LIMIT, SMALLER = "spec.workers.resources.limits.memory", "use a smaller batch"


@pytest.mark.parametrize(
    ("code", "what", "killed", "advice"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", False, SMALLER),
        (1, "torch.cuda.OutOfMemoryError: CUDA out of memory.", False, SMALLER),
        (1, "RuntimeError: CUDA error: out of memory", False, SMALLER),
        (-signal.SIGKILL, "", True, LIMIT),
        (
            1,
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: 9 bytes",
            False,
            LIMIT,
        ),
        (1, "MemoryError", False, LIMIT),
        (1, "OSError: [Errno 12] Cannot allocate memory", False, LIMIT),
        (1, "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ", True, LIMIT),
        (1, "RuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly", True, LIMIT),
    ],
)
def test_out_of_memory_is_told_apart_and_names_the_field_to_raise(
    code: int, what: str, killed: bool, advice: str
) -> None:
    failure = failed(code, raised(what) if what else "", oom=killed)
    assert failure.cause is Cause.OUT_OF_MEMORY
    assert failure.crash is not killed, "an exception leaves the container whole, the kernel's killer may come again"
    assert advice in failure.message
    assert ("where it is set" in failure.message) == (advice is LIMIT and not killed), "it may have no limit at all"
    assert ({LIMIT, SMALLER} - {advice}).pop() not in failure.message


@pytest.mark.parametrize(
    ("code", "what", "killed"),
    [
        (-signal.SIGKILL, "", False),
        (1, "ValueError: bad", True),
        (1, "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ", False),
    ],
)
def test_what_the_kernel_did_not_kill_for_memory_is_no_lack_of_it(code: int, what: str, killed: bool) -> None:
    assert failed(code, raised(what) if what else "", oom=killed).cause is Cause.USER


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Cause.NODE),
        ("torch.AcceleratorError: CUDA error: system not yet initialized", Cause.NODE),
        ("RuntimeError: CUDA error: device-side assert triggered", Cause.USER),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Cause.USER),
    ],
)
def test_broken_hardware_is_the_nodes_and_a_bad_index_the_scripts(what: str, cause: Cause) -> None:
    assert failed(1, raised(what)).cause is cause


def frames(*where: str) -> str:
    told = "".join(f'  File "{path}", line {line}, in {name}\n' for path, line, name in map(str.split, where))
    return f"Traceback (most recent call last):\n{told}"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("ValueError: [3, 4] at 0x7f12ab on rank 1", "ValueError: [30, 4] at 0x7fffab on rank 12", True),
        ("ValueError: took 1.5e-3 s", "ValueError: took 17 s", True),
        ("KeyError: '3f2a9c01bd'", "KeyError: 'ff2a9c01bd'", True),
        ("ValueError: bad", "ValueError: worse", False),
        ("ValueError: bad", "KeyError: bad", False),
    ],
)
def test_a_failure_is_known_again_whatever_its_numbers(one: str, other: str, alike: bool) -> None:
    where = frames("/w/train.py 17 step")
    assert (tracebacks.signature(one, where) == tracebacks.signature(other, where)) is alike


def test_a_failure_has_the_place_in_the_users_own_code() -> None:
    where = frames(
        "/w/train.py 3 <module>", "/w/model.py 17 forward", "/venv/lib/python3.12/site-packages/torch/f.py 9 f"
    )
    assert tracebacks.signature("ValueError: x", where) == "ValueError: x at model.py:17 in forward"
    elsewhere = where.replace("line 17", "line 18")
    assert tracebacks.signature("ValueError: x", elsewhere) != tracebacks.signature("ValueError: x", where)
    assert tracebacks.signature("", where) == ""


def test_scripts_that_are_not_there_or_cannot_be_read_are_known_again() -> None:
    absent = "python3: can't open file '/w/trian.py': [Errno 2] No such file or directory"
    assert failed(2, absent).signature == f"exit code 2, {absent.replace('2', '#').replace('python3', 'python#')}"
    wrong = '  File "/w/train.py", line 4\n    def (\n        ^\nSyntaxError: invalid syntax'
    assert failed(1, wrong).signature == "exit code 1, SyntaxError: invalid syntax at train.py:4"
    assert not failed(1, wrong).crash
    assert failed(3).signature == "exit code 3", "silent, and by its own choice"
    assert failed(-signal.SIGSEGV, "words").signature == ""
    assert failed(1, ECHO).signature == ""


def test_signals_are_named() -> None:
    assert verdict.describe(-signal.SIGBUS) == "was ended by SIGBUS"
    assert verdict.describe(-64 - 100) == "was ended by signal 164"
    assert verdict.describe(3) == "exited with code 3"
    assert verdict.describe(139) == "exited with code 139: its script was ended by SIGSEGV"
    assert verdict.describe(255) == "exited with code 255"


ECHO = SIMPLE.replace("ValueError: bad", "RuntimeError: gloo: Connection closed by peer")


def test_a_program_without_tracebacks_leaves_its_last_words() -> None:
    failure = failed(2, "usage: train [-h]\ntrain: error: no such file: data.bin\n\n")
    facts = verdict.failed(failure, None, index=0)
    assert facts.message == "rank 2 exited with code 2: train: error: no such file: data.bin"
    assert facts.traceback == "usage: train [-h]\ntrain: error: no such file: data.bin"


def test_the_source_of_a_warning_is_no_last_word() -> None:
    told = "/lib/loader.py:242: UserWarning: 3 of 4 shards are empty"
    failure = failed(2, f"{told}\n  warnings.warn(\n")
    assert failure.message == f"rank 2 exited with code 2: {told}"
    assert failed(2, "E: no such file\n  data.bin\n").message == "rank 2 exited with code 2: data.bin"


def test_one_that_logs_to_stdout_alone_leaves_that() -> None:
    """But is not known again by it: there the last word may be of progress."""
    said = ["record 17 of shard 3 has no label; giving up"]
    failure = verdict.failure(2, 3, [], ["step 16", *said], killed_for_memory=False)
    facts = verdict.failed(failure, None, index=0)
    assert facts.message == f"rank 2 exited with code 3: {said[0]}"
    assert facts.traceback == f"step 16\n{said[0]}"
    assert failure.signature == "exit code 3"
    assert verdict.failure(2, 3, ["E: bad"], said, killed_for_memory=False).last_words == "E: bad"
    assert verdict.failure(2, 1, lines(SIMPLE), said, killed_for_memory=False).last_words == ""


def test_what_the_session_has_said_is_no_word_about_the_end() -> None:
    """It stands on stderr, whatever the script does there, and mostly last."""
    session = ["muster: step 5/12  3.1 steps/s", "muster: checkpoint of step 4 committed: 0.03 MB in 0.91 s"]
    own = verdict.failure(2, 3, ["no label: a.png", *session], ["loading"], killed_for_memory=False)
    assert (own.message, own.last_words) == ("rank 2 exited with code 3: no label: a.png", "no label: a.png")
    assert own.signature == "exit code 3, no label: a.png"
    aside = verdict.failure(2, 3, session, ["no label: a.png"], killed_for_memory=False)
    assert (aside.message, aside.last_words) == (own.message, own.last_words)
    for said in (session, session[:1], session[1:]):  # which of them came last is chance
        nothing = verdict.failure(2, 3, said, [], killed_for_memory=False)
        assert (nothing.last_words, nothing.signature) == ("\n".join(said), "exit code 3")
        assert nothing.message == f"rank 2 exited with code 3: {said[-1]}"


def test_a_rank_that_is_ended_by_a_signal_leaves_its_last_words_as_well() -> None:
    """They are shown, but not said to be the reason, except where it ended itself and says why."""
    what = "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address"
    for number, told in ((signal.SIGABRT, True), (signal.SIGSEGV, False)):
        for code in (-number, 128 + number):
            failure = failed(code, what)
            assert verdict.failed(failure, None, index=0).traceback == what
            assert ("CUDA" in failure.message) is told
            assert (failure.crash, failure.signature) == (True, "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("shell", [False, True])
def test_what_a_script_has_lived_through_is_not_why_it_was_killed(number: int, shell: bool) -> None:
    caught = raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    failure = failed(128 + number if shell else -number, caught + "\nstep 17\nstep 18\n")
    assert (failure.cause, failure.crash, failure.signature) == (Cause.USER, True, "")
    assert failure.traceback == ""
    assert failure.message.endswith(f"was ended by {signal.Signals(number).name}")
    assert failure.last_words.endswith("step 17\nstep 18")
    assert failed(-signal.SIGABRT, raised("ValueError: x")).message.endswith("SIGABRT: ValueError: x")


def test_a_kill_for_memory_behind_a_shell_is_one() -> None:
    failure = failed(128 + signal.SIGKILL, "Killed", oom=True)
    assert failure.cause is Cause.OUT_OF_MEMORY
    assert LIMIT in failure.message


def test_an_own_failure_stays_the_users_whoever_was_first() -> None:
    facts = verdict.failed(failed(1, SIMPLE), Ended(0, 1, "user", "rank 0 exited"), index=1)
    assert (facts.cause, facts.exit_code) == (Cause.USER, exits.EXIT_USER)


@pytest.mark.parametrize(
    ("first", "cause"),
    [
        (Ended(0, 1, "user", "rank 0 exited"), Cause.PEER),
        (Ended(1, 1, "user", "itself", secondary=True), Cause.USER),
        (Ended(1, 1, "network", "lost each other", secondary=True), Cause.NETWORK),
        (None, Cause.INFRASTRUCTURE),
    ],
)
def test_an_echo_is_put_down_to_what_was_first(first: Ended | None, cause: Cause) -> None:
    facts = verdict.failed(failed(1, ECHO), first, index=1)
    assert facts.cause is cause
    assert "gloo" in facts.traceback


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_ranks_are_killed_before_kubelet_would_kill_the_launcher(now: float, grace: float) -> None:
    deadlines = Deadlines.within(now, now + grace)
    assert now <= deadlines.save_until <= deadlines.kill_at <= now + grace
    if grace >= 1:
        assert deadlines.kill_at < now + grace
        assert deadlines.save_until - now >= 0.69 * grace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0


def member(index: int, attempt: int = 0, uid: str = "") -> Member:
    return Member(index, uid or f"u{index}-{attempt}", "10.0.0.1", 1, attempt)


def test_a_barrier_forgets_who_hung_up_and_who_was_silent_for_long() -> None:
    barrier = Barrier(3, patience=10)
    for index in range(3):
        assert barrier.enter(member(index), now=0) is None
    assert barrier.missing(0) == []
    barrier.leave(member(1), 5, hung_up=True)
    barrier.leave(member(2), 5, hung_up=False)
    assert barrier.missing(6) == [1]
    assert barrier.missing(16) == [1, 2]


def test_a_second_call_of_the_same_pod_keeps_its_place_when_the_first_breaks() -> None:
    barrier = Barrier(1, patience=0)
    barrier.enter(member(0), 0)
    barrier.enter(member(0), 1)
    barrier.leave(member(0), 2, hung_up=True)
    assert barrier.missing(100) == []


def test_an_older_attempt_is_refused_and_a_newer_takes_over() -> None:
    barrier = Barrier(1, patience=10)
    assert barrier.enter(member(0, 1), 0) is None
    assert barrier.enter(member(0, 0), 0) is not None
    assert barrier.enter(member(0, 2), 0) is None
    assert barrier.present(0)[0].pod_uid == "u0-2"
    barrier.leave(member(0, 1), 1, hung_up=True)  # the older one's call ends later
    assert barrier.present(1)[0].pod_uid == "u0-2"


def test_a_roll_admits_whom_it_names() -> None:
    roll = Roll(1, 2)
    assert roll.check(member(1)) is None
    refused = roll.check(Member(1, "x", "a", generation=2))
    assert refused is not None
    assert refused.status == 409
    assert roll.push(Membership(1, 4, (member(0), member(1, 1)))) is None
    assert roll.incarnation() == 4
    assert roll.check(member(1, 1)) is None
    refused = roll.check(member(1))
    assert refused is not None
    assert refused.status == 403


def test_arguments() -> None:
    assert parse(["--nproc", "4", "--", "python", "--nproc"]) == (4, ("python", "--nproc"))
    assert parse(["--nproc=2", "python", "-x"]) == (2, ("python", "-x"))
    assert parse(["python"]) == (None, ("python",))
    for wrong in (["--nope", "x"], ["--nproc"], ["--nproc", "many", "x"]):
        with pytest.raises(config.ConfigError):
            parse(wrong)


def test_a_command_is_needed() -> None:
    with pytest.raises(config.ConfigError, match="no command"):
        config.read({}, ())


def test_the_kernels_count_of_kills_is_read_from_both_kinds_of_cgroup(tmp_path: Path) -> None:
    second, first = tmp_path / "memory.events", tmp_path / "memory.oom_control"
    second.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    first.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert termination.oom_kills((second, first)) == 2
    assert termination.oom_kills((tmp_path / "none", first)) == 5
    assert termination.oom_kills((tmp_path / "none",)) == 0


def test_a_stop_reaches_a_mapped_control_word_and_only_comes_nearer(tmp_path: Path) -> None:
    writer = ControlWriter(tmp_path)
    reader = ControlReader(str(tmp_path))
    assert (reader.stop_requested(), reader.deadline()) == (False, None)
    writer.ask_stop(100.0)
    writer.ask_stop(200.0)
    assert (reader.stop_requested(), reader.deadline()) == (True, 100.0)
    writer.ask_stop(50.0)
    assert reader.deadline() == 50.0
    assert not ControlReader(None).stop_requested()


def test_how_often_nodes_fail_reaches_the_control_word_of_ranks_that_run_and_of_those_that_are_started_later(
    tmp_path: Path,
) -> None:
    leads, (first, second) = SimpleNamespace(leads=True), (tmp_path / "1", tmp_path / "2")
    known = NodeHours(leads)  # type: ignore[arg-type]  # it has all that is asked
    first.mkdir(), second.mkdir()
    known.begin(ControlWriter(first))
    reader = ControlReader(str(first))
    assert reader.node_hours() is None
    assert known.know(Reliability(12.5)) is None
    assert reader.node_hours() == 12.5
    known.end()
    assert known.know(Reliability(3)) is None
    known.begin(ControlWriter(second))
    assert ControlReader(str(second)).node_hours() == 3.0
    for nonsense in (0, -1.0, float("nan"), float("inf"), True, "often"):
        refused = known.know(Reliability(nonsense))  # type: ignore[arg-type]
        assert refused is not None
        assert refused.status == 400
    assert ControlReader(str(second)).node_hours() == 3.0
    assert NodeHours(SimpleNamespace(leads=False)).know(Reliability(1.0)).status == 421  # type: ignore[arg-type,union-attr]


def of(incarnation: int, told: int | None = 1) -> Stop:
    return Stop(StopReason.PREEMPT, 10.0, told, incarnation)


def lost(incarnation: int, index: int = 1) -> Restart:
    return Restart(incarnation, Ended(index, 80, Cause.INFRASTRUCTURE.value))


def test_a_stop_that_comes_after_the_gang_went_on_without_the_pod_that_was_told_is_ignored() -> None:
    state = State()
    state.incarnation = 1
    assert state.hear_stop(of(1))
    assert state.stop_left() is not None
    state.ask_restart(lost(2))
    assert state.stop is None
    assert not state.hear_stop(of(1)), "it comes late"
    state.adopt(GangState(of(1), restart=lost(2)))
    assert state.stop is None
    assert not state.hear_stop(Stop(StopReason.PEER, 0.0, incarnation=1))
    assert not state.ending
    assert state.hear_stop(of(2, told=0)), "of the newest"
    assert state.stop is not None


def test_a_stop_of_the_whole_gang_outlasts_a_restart() -> None:
    """Index 0 holds it, and says it again as of the newest incarnation to who has ignored it."""
    leader, other = State(), State()
    leader.incarnation = other.incarnation = 1
    assert leader.ask_stop(of(0, told=None))
    late = leader.stop_left()
    leader.ask_restart(lost(2))
    other.ask_restart(lost(2))
    assert late is not None
    assert not other.hear_stop(late)
    other.adopt(GangState(leader.stop_left(), restart=leader.restart))
    assert other.stop is not None


def test_a_stop_of_nobody_knows_which_incarnation_counts() -> None:
    state = State()
    state.ask_restart(lost(3))
    assert state.hear_stop(of(0)), "the operator's, or an older launcher's"
    state = State()
    assert state.hear_stop(of(5)), "of a gang that goes on without a word to this launcher yet"


def test_a_stop_is_passed_on_as_of_the_newest_incarnation() -> None:
    state = State()
    state.ask_stop(of(0, told=None))
    state.ask_restart(lost(4))
    left = state.stop_left()
    assert left is not None
    assert left.incarnation == 4
    assert State().stop_left() is None


def test_a_guess_of_the_next_incarnation_makes_nothing_old() -> None:
    """Who takes index 0 for lost doesn't know how the gang goes on; index 0, back again, stops it."""
    state = State()
    state.incarnation = 1
    state.ask_restart(lost(2, index=0), guessed=True)
    assert state.hear_stop(of(1, told=None))


@given(st.binary(max_size=300))
def test_junk_on_the_report_socket_is_ignored(junk: bytes) -> None:
    assert report.decode(junk) is None


@pytest.mark.parametrize(
    "message",
    [
        report.Hello(0, 1),
        report.Progress(1, 2, 3, "nan", 0.1, 1.0, 2.0, 0.5),
        report.Progress(1, 2),
        report.CheckpointCommitted(0, 5, "s3://b/x", 1.5, 10, 1e9),
        report.Stopped(0, 5),
        report.Resumed(0, 5, "s3://b/x"),
        report.FellBack(0, 4),
        report.NothingLeft(0, 5, "n"),
        report.Warned(0, "w"),
        report.FixedSize(0, "f"),
        report.StorageFailed(0, "s"),
        report.Lost(0, 2, 100),
    ],
)
def test_reports_come_back_as_they_went(message: report.Message) -> None:
    assert report.decode(report.encode(message)) == message


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "Progress", "rank": 0, "step": "1"},
        {"kind": "Progress", "rank": 0, "step": 1, "loss": "low"},
        {"kind": "Progress", "rank": 0, "step": 1, "mfu": float("nan")},
        {"kind": "Progress", "rank": True, "step": 1},
        {"kind": "Progress", "rank": 0, "step": 2**63},
        {"kind": "Progress", "rank": 0, "step": -1},
        {
            "kind": "CheckpointCommitted",
            "rank": 0,
            "step": 1,
            "uri": "u",
            "seconds": 1,
            "bytes": 1,
            "committed_at": 1e12,
        },
        {"kind": "Warned", "rank": 0, "text": None},
    ],
)
def test_reports_of_the_wrong_shape_are_ignored(fields: dict[str, object]) -> None:
    assert report.decode(json.dumps(fields).encode()) is None


def test_a_rank_without_a_launcher_reports_to_nobody() -> None:
    assert not Reporter("/nonexistent").send(report.Hello(0, 1))
    assert not Reporter(None).send(report.Hello(0, 1))


def test_lost_reports_are_a_warning_once() -> None:
    progress = Progress()
    for reports in (1, 2):
        progress.take(report.Lost(3, reports, 0))
    assert list(progress.warned) == ["rank 3 had more to report than its launcher took: some of it is lost"]


def test_the_newest_warnings_are_kept_each_once() -> None:
    warned = Warned()
    for text in ("first", "second", "first", "x" * 1000):
        warned.take(text)
    assert list(warned) == ["first", "second", "x" * 500]
    for letter in "abcdefgh":
        warned.take(letter)
    assert list(warned) == list("abcdefgh")
    assert len(list(warned)) == WARNINGS_KEPT


def test_what_is_warned_of_again_and_again_pushes_out_nothing_else() -> None:
    now = 0.0
    warned = Warned(lambda: now)
    warned.take("step 7 can't be restored")
    for step in range(10, 60):
        warned.take(f"the checkpoint of step {step} is left out ({step - 9} so far)")
    late = [f"the checkpoint of step {step} is left out ({step - 9} so far)" for step in (10, 11, 12)]
    assert list(warned) == ["step 7 can't be restored", *late]
    warned.take("step 6 can't be restored")
    now = 3601.0
    warned.take("the checkpoint of step 99 is left out (90 so far)")
    assert list(warned)[-2:] == ["step 6 can't be restored", "the checkpoint of step 99 is left out (90 so far)"]


class Hurried(State):
    """Nothing happens, and no wait takes any time."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 0.0

    async def wait(self, timeout: float) -> None:
        self.now += timeout


class Dying(Ranks):
    """One rank, which is gone so long after SIGKILL."""

    def __init__(self, state: Hurried, seconds: float) -> None:
        super().__init__(lambda: None)
        self._state, self._seconds = state, seconds
        self._gone_at = float("inf")

    @property
    def running(self) -> list[Rank]:
        return [Rank(3, None)] if self._state.now < self._gone_at else []  # type: ignore[arg-type]

    def signal(self, number: int, ranks: object = None) -> None:
        if number == signal.SIGKILL:
            self._gone_at = self._state.now + self._seconds

    def reap(self) -> None:
        pass


@pytest.mark.parametrize(("seconds", "is_gone"), [(1.0, True), (40.0, True), (DYING_SECONDS + 1, False)])
def test_a_killed_rank_that_takes_long_to_be_gone_is_waited_for_where_another_takes_its_place(
    seconds: float, is_gone: bool
) -> None:
    async def gone() -> tuple[bool, float]:
        state = Hurried()
        ranks = Dying(state, seconds)
        stopping = Stopping(ranks, state)
        assert await stopping.kill() == [3]
        assert state.now <= 10, "a launcher that ends, ends soon"
        await stopping.outlast()
        return not ranks.running, state.now

    assert asyncio.run(gone()) == (is_gone, min(seconds, DYING_SECONDS))


def test_what_ranks_get_whatever_the_container_says_is_refused_in_a_jobs_env(tmp_path: Path) -> None:
    laptop = config.read({}, ("python", "train.py"), 2)
    container = dict.fromkeys((*env.TORCHRUN, "PYTHONUNBUFFERED"), "theirs")
    rank = environment.for_rank(container, laptop, Release(1, "127.0.0.1", 29500), tmp_path, 0, {})
    ours = {name for name in rank if rank[name] != container.get(name) and not name.startswith("MUSTER_")}
    assert ours - {"PYTHONUNBUFFERED", "OMP_NUM_THREADS"} == set(env.TORCHRUN)
