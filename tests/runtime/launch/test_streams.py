"""Launchers and scripts that are started without stdin, stdout or stderr, as daemons and some schedulers do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hack.s3server import BUCKET, S3Server

from muster_protocol.checkpoints.s3 import S3Store
from muster_protocol.uris import parse_uri
from muster_runtime.streams import keep_standard

pytestmark = pytest.mark.runtime

TRAIN = """
import sys
import torch, muster_runtime as muster
session = muster.start(checkpoint_every_steps=1, checkpoint=sys.argv[1])
model = session.wrap(torch.nn.Linear(2, 1))
session.track(model=model)
for step in session.steps(2):
    pass
"""


def _without(streams: str, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    closes = {"in": "<&-", "out": ">&-", "err": "2>&-"}
    shell = f'exec "$@" {" ".join(closes[name] for name in streams.split())}'
    return subprocess.run(
        ["sh", "-c", shell, "sh", *command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("streams", ["in out", "in out err"])
def test_what_the_ranks_print_is_written_to_nothing_that_the_launcher_has_opened(
    make_gang: Callable[..., Any], streams: str
) -> None:
    gang = make_gang(1)
    command = gang.script(
        "print('a line')\n"
        "opened = [os.readlink(f'/proc/{os.getppid()}/fd/{number}') for number in range(3)]\n"
        "Path(__file__).with_name('opened').write_text(' '.join(opened))\n"
    )
    done = _without(streams, [sys.executable, "-m", "muster_runtime.launch", "--", *command])
    assert done.returncode == 0, done.stdout
    opened = (Path(gang.folder) / "opened").read_text().split()
    assert opened[:2] == ["/dev/null"] * 2
    assert (opened[2] == "/dev/null") == ("err" in streams)


def test_a_script_without_stdin_saves_all_the_same(s3_server: S3Server, tmp_path: Path) -> None:
    """The memory that it shares with its storage process would have number 0, which is that process's stdin."""
    uri = f"s3://{BUCKET}/{tmp_path.name}"
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    done = _without("in", [sys.executable, str(path), uri], **s3_server.environment())
    assert done.returncode == 0, done.stdout
    with pytest.MonkeyPatch.context() as patched:
        for name, value in s3_server.environment().items():
            patched.setenv(name, value)
        assert S3Store(parse_uri(uri)).get("LATEST") is not None


CLOSES = {
    "python": "    sys.stdout.close(); sys.stderr.close()\n",
    "kernel": "    for number in range(3):\n        if step == 0: os.close(number)\n",
}


@pytest.mark.parametrize("how", CLOSES)
def test_a_script_that_closes_its_streams_trains_and_saves_all_the_same(how: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAIN.replace("import sys\n", "import os, sys\n").replace("    pass\n", CLOSES[how]))
    uri = f"file://{tmp_path}/run"
    done = _without("in", [sys.executable, str(path), uri])
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "run" / "LATEST").exists()


def test_streams_that_are_open_stay_as_they_are() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    keep_standard()
    assert sorted(os.listdir("/proc/self/fd")) == before
