"""A run that is over leaves nothing of torch at work that would need Python while Python ends (pytorch/pytorch#190489).

A gloo thread frees what a collective has left under Python's lock. One that asks for it too late aborts its process,
and one that asks for it while its group ends is waited for in vain, up to torch 2.6.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gangs import run_gang
from hack.needs_torch import needs_torch

SCRIPT = """
import atexit, sys
from pathlib import Path

def gloo_threads():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop")

atexit.register(lambda: print("left", gloo_threads()))  # the first one is the last to run

import torch
import torch.distributed as dist
from torch import nn
import muster_runtime as muster

session = muster.start()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.track(model=model, optimizer=optimizer)
try:
    for step in session.steps(2):
        if "stopped" in sys.argv:
            session.run.stopping.signal()
        optimizer.step()
        print("trains with", gloo_threads())
    if "destroyed" in sys.argv:
        dist.destroy_process_group()
    sys.exit(3)
finally:
    atexit._run_exitfuncs()  # a forked process runs none by itself
"""


@needs_torch("2.10", "since the gloo threads of 2.9 have no names")
@pytest.mark.parametrize(("way", "code"), [("ended", 3), ("stopped", 75), ("destroyed", 3)])
def test_no_thread_of_a_collective_is_left_when_python_ends(way: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {"MUSTER_CHECKPOINT_URI": f"file://{tmp_path}/run"}
    result = run_gang(script, tmp_path, 2, environment, arguments=(way,))
    assert result.codes == [code, code], result.output
    for said in result.outputs:
        assert "trains with 4" in said, "torch names them otherwise now"
        assert "left 0" in said, said


LEAVES = """
import torch.distributed as dist
import muster_runtime as muster
from muster_runtime.parallel.gang import Gang

session = muster.start()
for _ in range(15):
    gang = Gang(session.rank, session.world_size, dist.new_group(backend="gloo"))
    for exchange in range(3):
        gang.gather({"of": session.rank})
        gang.sum([1.0])
    gang.leave()
print("left all")
"""


def test_a_gang_may_leave_right_after_an_exchange(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LEAVES)
    result = run_gang(script, tmp_path, 2, seconds=60).check()
    assert all("left all" in said for said in result.outputs)
