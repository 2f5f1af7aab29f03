"""Loaders of other libraries: each rank's own place, restored on as many ranks, refused on others, and told."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from gangs import Result, run_gang

from muster_runtime import report, reporter
from muster_runtime.checkpoint.tree import packed
from muster_runtime.control import ControlWriter
from muster_runtime.data.foreign import pack, unpack


def train(folder: Path, ranks: int = 2, **more: str) -> Result:
    folder.mkdir(exist_ok=True)
    uri = {"FOLDER": str(folder), "MUSTER_CHECKPOINT_URI": f"file://{folder}/run"}
    return run_gang("foreign.py", folder, ranks, {**uri, **more})


def records(folder: Path) -> list[str]:
    return [(folder / f"record-{rank}.jsonl").read_text() for rank in range(2)]


@pytest.mark.parametrize(
    ("workers", "stop", "noise"), [("0", "5", ""), ("2", "3", ""), ("0", "5", "1"), ("0", "3", "1")]
)  # within the second epoch, and at the first's end; augmentations are drawn from the process's generator
def test_a_stateful_dataloader_goes_on_in_its_place(workers: str, stop: str, noise: str, tmp_path: Path) -> None:
    how = {"WORKERS": workers, "NOISE": noise}
    train(tmp_path / "whole", **how).check()
    assert train(tmp_path / "cut", STOP=stop, **how).codes == [75, 75]
    train(tmp_path / "cut", **how).check()
    assert records(tmp_path / "cut") == records(tmp_path / "whole")
    assert [len(text.splitlines()) for text in records(tmp_path / "cut")] == [10, 10]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, 3),
        torch.tensor([1j]),
        torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32),  # NaN has payload bits
        torch.arange(6.0).to(torch.float8_e4m3fn).reshape(2, 3).t(),
        torch.tensor([2**64 - 1], dtype=torch.uint64),
    ],
)
def test_tensors_that_it_keeps_come_back_as_they_were(tensor: torch.Tensor) -> None:
    (found,) = unpack("loader", pack("loader", [tensor]))
    assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
    octets = [each.contiguous().reshape(-1).view(torch.uint8).tolist() for each in (found, tensor)]
    assert octets[0] == octets[1]


def test_tensors_that_an_older_muster_has_written_are_read() -> None:
    old = packed({"tree": {"left": {"$tensor": "loader.left"}}, "tensors": {"loader.left": ["int16", [[1, 2]]]}})
    found = unpack("loader", old)["left"]
    assert (found.tolist(), found.dtype) == ([[1, 2]], torch.int16)


def test_another_number_of_ranks_is_refused_and_said_before(tmp_path: Path) -> None:
    ControlWriter(tmp_path)
    heard = []
    with reporter.listen(tmp_path) as launcher:
        assert train(tmp_path, STOP="2", MUSTER_RUN_DIR=str(tmp_path)).codes == [75, 75]
        with contextlib.suppress(BlockingIOError):
            while True:
                heard.append(report.decode(launcher.recv(report.DATAGRAM_LIMIT)))
    told = next(message for message in heard if isinstance(message, report.FixedSize))
    assert told.rank == 0
    kinds = [type(message) for message in heard if message is not None and message.rank == told.rank]
    assert kinds.index(report.FixedSize) < kinds.index(report.Progress), "before the first step is known"
    assert "'loader', tracked at" in told.text
    assert "is of StatefulDataLoader, whose place is each rank's own" in told.text
    result = train(tmp_path, ranks=3)
    for rank in range(3):
        assert result.codes[rank] == 1, result.output
        assert "StateError: 'loader', tracked at" in result.outputs[rank]
        assert "The checkpoint is of 2 ranks, this gang has 3" in result.outputs[rank]


def test_wrapping_one_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import muster_runtime as muster\nfrom torchdata.stateful_dataloader import StatefulDataLoader\n"
        "muster.start().wrap(StatefulDataLoader([1, 2]))\n"
    )
    result = run_gang(script, tmp_path, 1, distributed=False)
    assert "script.py:3: this StatefulDataLoader keeps its own place, so don't wrap it" in result.output
