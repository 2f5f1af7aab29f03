"""`muster checkpoint import`: the inverse of `export`, bit for bit, with little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

from muster.cli.app import app
from muster.cli.checkpoint_stores import open_store
from muster_protocol.checkpoints import importing
from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.retention import Retention
from muster_protocol.uris import parse_uri
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.tree import TensorTable, join
from muster_runtime.parallel.gang import Gang

if TYPE_CHECKING:
    from conftest import S3Server

MODEL = {
    "embed.weight": torch.arange(5000.0).view(1000, 5),
    "half": torch.arange(77, dtype=torch.bfloat16).view(7, 11),
    "flags": torch.tensor([True, False, True]),
    "scale": torch.tensor(0.25),
    "none": torch.empty(0, 4),
    "wide": torch.rand(2, 3000),
}


AT_MOST = 3 * (64 << 20)
"""Bytes of memory that a model of any size may take: an import has two of its objects there, an export four parts
that are on their way, and both have buffers, and what the allocator keeps of those that are gone. A tensor of the large
model has 160 MB, beside which neither would have room for that."""


@pytest.fixture(autouse=True)
def _small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "OBJECT_BYTES", 4096)


def muster(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["checkpoint", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hub"
    made.mkdir()
    safetensors.torch.save_file(MODEL, made / "model.safetensors")
    return made


def test_what_was_imported_is_restored_and_exported_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    said = muster("import", str(folder), uri)
    assert f"muster checkpoint cp {uri} s3://BUCKET/PREFIX" in said, "a job's checkpoint.from takes no file://"
    assert "checkpoint: {from: 's3://BUCKET/PREFIX', load: model}" in said
    muster("verify", uri)
    store = FileStore(parse_uri(uri))
    found = find_start(store, None)
    assert max(file.size for file in found.manifest.files) <= 4096
    tables: list[TensorTable] = []

    def prepare(_: Found, reader: Reader) -> TensorTable:
        tables.append({f"model.{name}": torch.zeros_like(tensor) for name, tensor in MODEL.items()})
        return tables[-1]

    keeper = Keeper(store, Gang(), owner="job", job="job", retention=Retention(), warn=print)
    keeper.load(store, found, prepare)
    assert all(tables[-1][f"model.{name}"].equal(tensor) for name, tensor in MODEL.items())
    muster("export", uri, str(tmp_path / "out"))
    again = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert again.keys() == MODEL.keys()
    assert all(again[name].equal(tensor) and again[name].dtype == tensor.dtype for name, tensor in MODEL.items())


def test_a_model_in_several_files(folder: Path, tmp_path: Path) -> None:
    first, second, third = (f"file://{tmp_path}/{name}" for name in ("one", "parts", "two"))
    muster("import", str(folder), first)
    muster("export", first, second, "--shard-size", "9000")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    muster("import", second, third)
    assert "6 of 6 tensors are the same" in muster("diff", first, third, "--read")


def test_folders_have_the_names_that_they_have(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder.rename("a model, 100% é#1")
    muster("import", "a model, 100% é#1", f"file://{tmp_path}/run")
    muster("export", f"file://{tmp_path}/run", "out of it")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a model, 100% é#1", "out of it", "run"]


def test_the_files_that_loaders_take_are_imported(tmp_path: Path) -> None:
    """The whole file before any index, and each tensor from the file that the index names."""
    parts = {"one": {"a": torch.ones(1)}, "two": {"a": torch.zeros(1), "b": torch.ones(1)}}
    for name, tensors in parts.items():
        safetensors.torch.save_file(tensors, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    store = FileStore(parse_uri(f"file://{tmp_path}"))
    assert [(each.name, each.file) for each in importing.read_model(store)] == [
        ("a", "one.safetensors"),
        ("b", "two.safetensors"),
    ]
    safetensors.torch.save_file({"c": torch.ones(1)}, tmp_path / "model.safetensors")
    assert [each.name for each in importing.read_model(store)] == ["c"]


def test_a_pointer_in_place_of_a_file_and_a_file_in_place_of_a_folder_are_told(tmp_path: Path) -> None:
    file, uri = tmp_path / "model.safetensors", f"file://{tmp_path}/run"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9976576152\n")
    assert f"{file} is Git LFS's pointer to a file" in muster("import", str(tmp_path), uri, code=2)
    assert "which names a folder" in muster("import", str(file), uri, code=2)


@pytest.mark.parametrize(
    ("index", "header", "pattern"),
    [
        ({"weight_map": ["a"]}, {}, "its weight_map names no files"),
        ({"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}, {}, "names b, which x.safetensors has not"),
        ({"weight_map": {"b": "x.safetensors"}}, {}, "does not name a, which x.safetensors has"),
        ({"weight_map": {"a": "../x.safetensors"}}, {}, "its weight_map names no files"),
        (None, {"data_offsets": [-4, 0]}, "the entry of a is damaged"),
        (None, {"data_offsets": [4, 0]}, "a has -4 bytes"),
        (None, {"shape": [-1, -1]}, "the entry of a is damaged"),
        (None, {"shape": "1"}, "the entry of a is damaged"),
        (None, {"shape": [1.0]}, "the entry of a is damaged"),
        (None, {"dtype": ["F32"]}, "a in model.safetensors is of type ['F32'], which a checkpoint can't hold"),
        (None, {"data_offsets": ["x", 4]}, "the entry of a is damaged"),
        (None, {"data_offsets": [2, 6]}, "a follows 2 bytes of no tensor"),
        (None, {"shape": [2], "data_offsets": [0, 8]}, "ends before byte"),
        (None, {"dtype": "I8", "data_offsets": [0, 1]}, "model.safetensors has 3 bytes after its last tensor"),
        (None, None, "has no tensors"),
    ],
)
def test_a_damaged_model_is_told(index: Any, header: Any, pattern: str, tmp_path: Path) -> None:
    entry = {} if header is None else {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **header}}
    text = json.dumps(entry).encode()
    name = "model.safetensors" if index is None else "x.safetensors"
    (tmp_path / name).write_bytes(len(text).to_bytes(8, "little") + text + bytes(4 if entry else 0))
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert pattern in muster("import", str(tmp_path), f"file://{tmp_path}/run", code=2)
    assert not (tmp_path / "run").exists()


def test_tensors_on_top_of_each_other_are_told(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1]}
    text = json.dumps({"a": {**entry, "data_offsets": [0, 4]}, "b": {**entry, "data_offsets": [2, 6]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(6))
    assert "b overlaps the tensor before it" in muster("import", str(tmp_path), f"file://{tmp_path}/run", code=2)


@pytest.mark.parametrize("names", [("$tensor",), ("$x",), ("$y", "", "..", "a/b", "é", "n" * 5000)])
def test_a_name_is_a_name_and_no_tag(names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    tensors = {name: torch.full((2,), number) for number, name in enumerate(names)}
    safetensors.torch.save_file(tensors, tmp_path / "hub/model.safetensors")
    uri = f"file://{tmp_path}/run"
    muster("import", str(tmp_path / "hub"), uri)
    trees = find_start(FileStore(parse_uri(uri)), None).manifest.planner["trees"]
    assert join(trees["model"], lambda _, name: [name]) == {name: [f"model.{name}"] for name in names}
    muster("export", uri, str(tmp_path / "out"))
    again = safetensors.torch.load_file(tmp_path / "out/model.safetensors")
    assert {name: each.tolist() for name, each in again.items()} == {
        name: each.tolist() for name, each in tensors.items()
    }


def test_what_is_no_model_is_told(folder: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    assert "has neither model.safetensors nor" in muster("import", str(tmp_path), uri, code=2)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    assert "ends before" in muster("import", str(folder), uri, code=2)
    assert not (tmp_path / "run").exists()
    file.write_bytes(b"\xff" * 100)
    assert "is no safetensors file" in muster("import", str(folder), uri, code=2)
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert "a has 4 bytes" in muster("import", str(folder), uri, code=2)
    file.write_bytes(whole)
    for name in ("", "muster", "a.b"):
        assert f"no script can track an object named {name!r}" in muster(
            "import", str(folder), uri, "--object", name, code=2
        )
    muster("import", str(folder), uri)
    assert "has a checkpoint of step 0 already" in muster("import", str(folder), uri, code=2)


PEAK = """
import sys
from muster.cli.app import app
try:
    app(sys.argv[1:])
finally:
    (peak,) = (int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(f"peak {peak << 10}")
"""
"""Prints the most resident bytes that `muster` has had."""


def peak(*arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "checkpoint", *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("where", ["file", "s3"])
def test_the_memory_that_is_taken_does_not_depend_on_the_models_size(
    where: str, s3_environment: S3Server, tmp_path: Path
) -> None:
    """One tensor is half of the model: not that is held whole, either."""
    below = f"file://{tmp_path}" if where == "file" else f"s3://models/{tmp_path.name}"
    taken: dict[str, list[int]] = {}
    for name, rows in (("small", 16), ("large", 16_000)):
        model = {"embed": torch.ones(rows, 2500), **{f"layer.{n}": torch.ones(rows, 250) for n in range(10)}}
        (tmp_path / name).mkdir()
        safetensors.torch.save_file(model, tmp_path / name / "model.safetensors")
        run, out = f"{below}/{name}-run", f"{below}/{name}-out"
        taken[name] = [peak("import", str(tmp_path / name), run), peak("export", run, out)]
        (exported,) = open_store(parse_uri(out), None).objects("model")
        assert exported.size > 20_000 * rows
    print(taken)
    more = [large - small for small, large in zip(taken["small"], taken["large"], strict=True)]
    assert max(more) < AT_MOST, f"bytes more than for a small model, by import and export: {more}"
