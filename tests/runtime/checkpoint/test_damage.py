"""Each kind of object with a flipped byte, cut short, or gone: what a restore does, and what the tools say."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made import MadeRun, MemoryStore
from test_keeper import Run
from typer.testing import CliRunner

from muster.cli.app import app
from muster_protocol.checkpoints.chain import read_manifest
from muster_protocol.checkpoints.export import model_tensors
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.store import Store
from muster_protocol.errors import CorruptCheckpointError
from muster_protocol.uris import parse_uri

STEPS = (5, 6, 7)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}/run"


@pytest.fixture
def store(uri: str) -> Store:
    made = FileStore(parse_uri(uri))
    run = Run(made)
    for step in STEPS:
        run.save(step)
    return made


def muster(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkpoint", *arguments])
    return result.exit_code, result.output


def flip(store: Store, key: str, at: int = 0) -> None:
    body = store.get(key)
    assert body is not None
    content = bytearray(body.content)
    content[at] ^= 1
    store.put(key, bytes(content))


def truncate(store: Store, key: str) -> None:
    body = store.get(key)
    assert body is not None
    store.put(key, body.content[:-1])


def remove(store: Store, key: str) -> None:
    store.delete([key])


HARM: dict[str, Callable[[Store, str], None]] = {"flipped": flip, "truncated": truncate, "gone": remove}


@pytest.mark.parametrize(
    ("harm", "restore", "verify"),
    [
        ("flipped", "CRC-32 differs", "are not those that were saved"),
        ("truncated", "bytes, not|ends before", "the manifest says"),
        ("gone", "does not exist", "is missing"),
    ],
)
def test_a_shard(store: Store, uri: str, harm: str, restore: str, verify: str) -> None:
    HARM[harm](store, find_start(store, 7).manifest.files[0].key)
    again = Run(store)
    assert again.restore() == 6
    assert any(part in again.warnings[0] for part in restore.split("|")), again.warnings
    code, told = muster("verify", uri)
    assert code == 1
    assert verify in told
    for command in (["cp", uri, f"{uri}-copy"],):
        code, told = muster(*command)
        assert code == 2, told


@pytest.mark.parametrize("harm", HARM)
def test_a_manifest(store: Store, uri: str, harm: str) -> None:
    HARM[harm](store, find_start(store, 7).key)
    again = Run(store)
    assert again.restore() == 6
    expected = "is missing" if harm == "gone" else "not the manifest that was committed"
    assert expected in again.warnings[0]
    code, told = muster("verify", uri, "--all")
    assert code == 1
    assert expected in told
    assert "2 of 3" in told or "2 of 2" in told, told
    again.save(8)
    assert Run(store).restore() == 8


_TENSOR = ("planner", "tensors", "model.weight")
_CHUNK = (*_TENSOR, "chunks", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("step",), -1),
        (("created_at",), 1e300),
        (("parent",), "../other/manifest.json"),
        (("metrics",), {"loss": "low"}),
        (("files",), None),
        (("files", 0), None),
        (("files", 0, "key"), "../../secret"),
        (("files", 0, "key"), "/etc/passwd"),
        (("files", 0, "key"), None),
        (("files", 0, "size"), None),
        (("planner",), None),
        (("planner", "trees"), None),
        (("planner", "trees", "model", "weight", "$tensor"), []),
        (("planner", "tensors"), {}),
        ((*_TENSOR, "shape"), [-2, -6]),
        ((*_CHUNK, "offsets"), []),
        ((*_CHUNK, "offsets"), [3, 0]),
        ((*_CHUNK, "offsets"), [0.5, 0]),
        ((*_CHUNK, "at"), -1),
        ((*_CHUNK, "file"), -1),
    ],
)
def test_a_manifest_that_makes_no_sense_is_told(path: tuple[Any, ...], value: object) -> None:
    made = MadeRun(MemoryStore())
    made.start()
    key = made.save(1)
    body = made.store.get(key)
    assert body is not None
    raw = json.loads(body.content)
    functools.reduce(operator.getitem, path[:-1], raw)[path[-1]] = value
    made.store.put(key, json.dumps(raw).encode())
    with pytest.raises(CorruptCheckpointError):
        model_tensors(read_manifest(made.store, key), "model")


def test_bytes_between_tensors(store: Store, uri: str) -> None:
    """They belong to no tensor, but a restore checks whole objects; so verify and cp must say it, too."""
    file = find_start(store, 7).manifest.files[0]
    ends = {raw["chunks"][0]["at"] for raw in find_start(store, 7).manifest.planner["tensors"].values()}
    gap = max(at for at in ends if at) - 1
    flip(store, file.key, gap)
    assert Run(store).restore() == 6
    code, told = muster("verify", uri)
    assert code == 1
    assert f"{file.key} is not what was saved (CRC-32 differs), though its tensors are" in told
    code, told = muster("cp", uri, f"{uri}-copy")
    assert code == 2
    assert "is not what was saved" in told


@pytest.mark.parametrize("harm", HARM)
def test_latest(store: Store, uri: str, harm: str) -> None:
    HARM[harm](store, "LATEST")
    with pytest.raises(CorruptCheckpointError, match=r"LATEST is missing, though|LATEST is damaged"):
        Run(store)
    if harm != "gone":
        for command in ("ls", "verify", "show", "prune"):
            code, told = muster(command, uri)
            assert code == 2, command
            assert "LATEST is damaged" in told
    assert len({item.key.split("/")[0] for item in store.objects("step-")}) == len(STEPS), "nothing is begun anew"


@pytest.mark.parametrize("harm", HARM)
def test_records_of_the_losses_are_no_part_of_a_checkpoint(store: Store, uri: str, harm: str) -> None:
    store.put("metrics/0001-7", b"losses")
    HARM[harm](store, "metrics/0001-7")
    assert Run(store).restore() == 7
    assert muster("verify", uri, "--all")[0] == 0


@pytest.mark.parametrize("harm", ["flipped", "truncated"])
def test_a_hold_or_a_tag_that_can_not_be_read_keeps_everything(store: Store, uri: str, harm: str) -> None:
    assert muster("keep", f"{uri}@5", "--name", "mine")[0] == 0
    run = Run(store)
    run.restore()
    for step in (8, 9, 10):
        run.save(step)
    HARM[harm](store, "holds/mine.json")
    code, told = muster("prune", uri, "--last", "1", "--yes")
    assert code == 0, told
    assert Run(store).restore() == 10
    assert find_start(store, 5).manifest.step == 5
