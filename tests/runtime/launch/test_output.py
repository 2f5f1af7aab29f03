"""The ranks' output is passed on line by line; torchrun's scripts find what torchrun would give them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Checkpoint, Phase

pytestmark = pytest.mark.runtime

MakeGang = Callable[..., Any]


def test_lines_carry_their_rank_and_are_never_mixed(make_gang: MakeGang) -> None:
    gang = make_gang(1, 4)
    pod = gang.pod(0, gang.script("for i in range(500): print(f'{RANK}-{i}-' + 'x' * 200)\nprint('end', end='')\n"))
    assert pod.end().cause is Cause.SUCCEEDED
    lines = [line for line in pod.log().splitlines() if not line.startswith("[muster]")]
    wanted = [f"[rank {rank}] {rank}-{i}-" + "x" * 200 for rank in range(4) for i in range(500)]
    assert sorted(lines) == sorted(wanted + [f"[rank {rank}] end" for rank in range(4)])


def test_a_lone_rank_writes_as_it_would_without_a_launcher(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    pod = gang.pod(0, gang.script("sys.stdout.write('a\\rb\\r\\xff no end')\n"))
    assert pod.end().cause is Cause.SUCCEEDED
    output = pod.output.read_bytes().replace(b"\r\n", b"\n")
    assert "a\rb\r\xff no end".encode() in output


def test_the_command_runs_as_it_is_with_torchruns_variables(make_gang: MakeGang) -> None:
    gang = make_gang(2, 2, MUSTER_GENERATION="5", USERS_OWN="kept")
    shell = ["sh", "-c", 'echo "$0 $1"; env > env-$RANK', "two words; $HOME", "&& | >"]
    pods = gang.all(shell)
    assert [pod.end().cause for pod in pods] == [Cause.SUCCEEDED] * 2
    assert "[rank 3] two words; $HOME && | >" in pods[1].log()
    seen = {}
    for rank in range(4):
        lines = (gang.folder / f"env-{rank}").read_text().splitlines()
        seen[rank] = dict(line.split("=", 1) for line in lines if "=" in line)
    for rank, values in seen.items():
        wanted = {
            "RANK": rank,
            "LOCAL_RANK": rank % 2,
            "WORLD_SIZE": 4,
            "LOCAL_WORLD_SIZE": 2,
            "GROUP_RANK": rank // 2,
            "GROUP_WORLD_SIZE": 2,
            "MASTER_ADDR": f"{gang.net}.1",
            "TORCHELASTIC_RUN_ID": "probe",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "OMP_NUM_THREADS": 1,
            "MUSTER_INCARNATION": 1,
            "USERS_OWN": "kept",
        }
        assert {name: values.get(name) for name in wanted} == {name: str(value) for name, value in wanted.items()}
        assert values["MASTER_PORT"] == seen[0]["MASTER_PORT"]
        assert "MUSTER_TOKEN" not in values, "the token stays with the launcher"


def test_an_unwritable_termination_log_is_only_a_warning(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    pod = gang.pod(0, ["false"], MUSTER_TERMINATION_LOG="/proc/none/log")
    assert pod.process.wait(20) == 1
    assert "can't be written to /proc/none/log" in pod.log()


def test_metrics_and_status_show_what_ranks_reported_and_junk_is_ignored(make_gang: MakeGang) -> None:
    gang = make_gang(1, 2)
    script = """
import socket
from muster_runtime import report
from muster_runtime.reporter import Reporter
junk = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for text in (b"junk", b"[]", b'{"kind": "Progress", "rank": "x", "step": NaN}', b'{"kind": "Hello"}'):
    junk.sendto(text, os.environ["MUSTER_RUN_DIR"] + "/report")
reporter = Reporter()
reporter.send(report.Hello(RANK, os.getpid()))
reporter.send(report.Progress(RANK, 41 + RANK, 100, "2.5", 0.25, 1000.0, 8.0, 0.5, "1.25"))
reporter.send(report.Resumed(RANK, 40, "s3://models/x"))
reporter.send(report.Warned(RANK, "slow disk"))
if RANK == 0: reporter.send(report.CheckpointCommitted(0, 40, "s3://models/x", 1.5, 4096, 1e9, 0.125))
mark("running")
time.sleep(600)
"""
    pod = gang.pod(0, gang.script(script))
    gang.eventually(lambda: len(gang.marks("running")) == 2, "both ranks have reported")
    gang.eventually(lambda: pod.status().step == 42, "the status has their reports")
    status = pod.status()
    assert (status.phase, status.total_steps, status.loss) == (Phase.RUNNING, 100, "2.5")
    assert (status.resumed_from, status.resumed_uri) == (40, "s3://models/x")
    assert status.warnings == ("slow disk",)
    assert status.checkpoint == Checkpoint(40, "s3://models/x", 1e9, 1.5, 4096)
    labels = 'index="0",job_name="probe",namespace="research"'
    metrics = pod.ask("GET", "/metrics", token=None)[1].decode()
    for line in (
        f'muster_worker_step{{{labels},rank="1"}} 42.0',
        f"muster_worker_loss{{{labels}}} 2.5",
        f"muster_worker_gradient_norm{{{labels}}} 1.25",
        f"muster_worker_samples_per_second{{{labels}}} 8.0",
        f"muster_run_total_steps{{{labels}}} 100.0",
        f"muster_worker_checkpoint_stall_seconds_sum{{{labels}}} 0.125",
        f"muster_worker_mfu_ratio{{{labels}}} 0.5",
        f"muster_worker_tokens_per_second{{{labels}}} 1000.0",
        f"muster_run_progress_ratio{{{labels}}} 0.42",
        f"muster_worker_ranks_running{{{labels}}} 2.0",
        f"muster_worker_incarnation{{{labels}}} 1.0",
        f"muster_worker_checkpoint_bytes_total{{{labels}}} 4096.0",
        f"muster_worker_checkpoint_last_committed_step{{{labels}}} 40.0",
        f"muster_worker_step_seconds_count{{{labels}}} 1.0",
    ):
        assert line in metrics


def test_when_the_storage_refused_a_save_last_is_shown(make_gang: MakeGang, tmp_path: Path) -> None:
    gang = make_gang(1, MUSTER_CHECKPOINT_URI=f"file://{tmp_path}/run")
    script = """
from muster_runtime import report
from muster_runtime.reporter import Reporter
reporter = Reporter()
reporter.send(report.Hello(0, os.getpid()))
mark("begun")
while not Path(sys.argv[0]).with_name("refuse").exists(): time.sleep(0.01)
reporter.send(report.StorageFailed(0, "the checkpoint of step 5 was not saved: access is denied"))
time.sleep(600)
"""
    pod = gang.pod(0, gang.script(script))
    gang.eventually(lambda: gang.marks("begun"), "the rank runs")

    def at(what: str) -> float:
        text = pod.ask("GET", "/metrics", token=None)[1].decode()
        return float(next(line for line in text.splitlines() if line.startswith(what + "{")).split()[-1])

    failed, committed = (f"muster_worker_checkpoint_last_{it}_timestamp_seconds" for it in ("failed", "committed"))
    assert at(failed) == 0 < at(committed)
    (gang.folder / "refuse").touch()
    gang.eventually(lambda: at(failed) > at(committed), "the failure is shown")


def test_on_a_laptop_it_needs_no_environment(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    command = [sys.executable, "-m", "muster_runtime.launch", "--nproc", "3", "--", *gang.script("mark('ran')\n")]
    done = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert len(gang.marks("ran")) == 3


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("MUSTER_WORKERS", "0", "MUSTER_WORKERS is '0'"),
        ("MUSTER_INDEX", "9", "indexes go from 0 to 0"),
        ("MUSTER_TOKEN", "", "MUSTER_TOKEN is not set"),
        ("MUSTER_GRACE_SECONDS", "soon", "number of seconds"),
        ("MUSTER_CHECKPOINT_URI", "bucket/x", "is not a checkpoint uri"),
    ],
)
def test_a_wrong_variable_is_one_clear_line(make_gang: MakeGang, variable: str, value: str, told: str) -> None:
    facts = make_gang(1).pod(0, ["true"], **{variable: value}).end()
    assert facts.cause is Cause.CONFIG
    assert told in facts.message


def test_ranks_of_two_launchers_reduce_over_gloo(make_gang: MakeGang) -> None:
    gang = make_gang(2, 2)
    script = """
import json, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(RANK + 1)])
dist.all_reduce(value)
Path(__file__).with_name(f"sum-{RANK}").write_text(json.dumps(value.item()))
dist.destroy_process_group()
"""
    pods = gang.all(gang.script(script), GLOO_SOCKET_IFNAME="lo")
    for pod in pods:
        assert pod.end(60).cause is Cause.SUCCEEDED, pod.log()
    assert [json.loads((gang.folder / f"sum-{rank}").read_text()) for rank in range(4)] == [10.0] * 4


def test_an_orphan_of_a_rank_does_not_outlive_the_launcher(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    script = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nRANK = child.pid\nmark('orphan')\n"
    pod = gang.pod(0, gang.script(script))
    assert pod.end().cause is Cause.SUCCEEDED
    (name,) = gang.marks("orphan")
    orphan = int(name.rsplit("-", 1)[1])

    def gone() -> bool:
        try:
            os.kill(orphan, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{orphan}/stat") as stat:  # nobody may have reaped it yet
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"

    gang.eventually(gone, "the orphan is gone")


def test_user_signals_reach_the_ranks(make_gang: MakeGang) -> None:
    gang = make_gang(1)
    script = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\nmark('running')\ntime.sleep(600)\n"
    pod = gang.pod(0, gang.script(script))
    gang.eventually(lambda: gang.marks("running"), "the rank runs")
    pod.signal(signal.SIGUSR1)
    assert pod.end().cause is Cause.SUCCEEDED
