"""What `python -m hack.cluster image build` says where it can't build."""

from __future__ import annotations

from pathlib import Path

import pytest
from hack.cluster import images
from hack.cluster.errors import ClusterError
from hack.cluster.plan import Options, Site
from hack.cluster.processes import run_logged
from hack.cluster.progress import Progress

pytestmark = pytest.mark.unit

THERE = ("localhost/muster/base:local", "localhost/muster/torch:local")


def build(folder: Path, recipe: Path, context: Path) -> None:
    site = Site(Options(), 0, folder)
    images.build_and_import(site, "localhost/me/train:1", recipe, context, {}, Progress(quiet=True))


def test_what_is_not_there_is_named_with_its_flag(tmp_path: Path) -> None:
    recipe = tmp_path / "Containerfile"
    with pytest.raises(ClusterError, match=r"^--containerfile .*/Containerfile: there is no such file$"):
        build(tmp_path, recipe, tmp_path)
    recipe.write_text("FROM localhost/muster/torch:local\n")
    with pytest.raises(ClusterError, match=r"^--context .*/nope: there is no such folder$"):
        build(tmp_path, recipe, tmp_path / "nope")
    with pytest.raises(ClusterError, match=r"^--context .*/Containerfile: there is no such folder$"):
        build(tmp_path, recipe, recipe)


def test_a_base_that_nobody_has_built_is_told_before_a_registry_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images.packages, "ensure", lambda *_: None)
    monkeypatch.setattr(images, "_base_and_torch", lambda _: [])
    monkeypatch.setattr(images, "_buildah", lambda: ["buildah"])
    monkeypatch.setattr(images, "run", lambda _: "\n".join((*reversed(THERE), "<none>:<none>")))
    (tmp_path / "Containerfile").write_text("FROM localhost/muster/torhc:local\n")
    told = (
        "FROM localhost/muster/torhc:local: there is no such image; there are localhost/muster/base:local, localhost/"
    )
    with pytest.raises(ClusterError, match=told):
        build(tmp_path, tmp_path / "Containerfile", tmp_path)


@pytest.mark.parametrize(
    ("recipe", "unknown"),
    [
        ("FROM localhost/muster/torch:local", []),
        ("FROM --platform=linux/amd64 localhost/muster/torhc:local AS x", ["localhost/muster/torhc:local"]),
        ("from localhost/muster/torch", ["localhost/muster/torch"]),
        ("FROM localhost/muster/torch:local AS localhost/stage\nFROM localhost/stage", []),
        ("ARG BASE\nFROM $BASE\nFROM docker.io/library/python:3.12\nFROM localhost/${BASE}", []),
        ("FROM", []),
    ],
)
def test_bases_of_no_registry(recipe: str, unknown: list[str]) -> None:
    assert images.unknown_bases(recipe, THERE) == unknown


def test_a_failed_build_is_named_by_what_was_built(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"^the build of image a failed \(3\); log .*/log:\n    no room$"):
        run_logged(["sh", "-c", "echo no room; exit 3"], tmp_path / "log", what="the build of image a")
