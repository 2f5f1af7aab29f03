"""Scripts from outside, as users bring them, in an image that knows nothing of Muster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hack import images
from hack.demo.kube import Json

if TYPE_CHECKING:
    from conftest import World

OUTSIDE = Path(__file__).resolve().parents[2] / "examples" / "outside"
JOBS = sorted(OUTSIDE.glob("*.yaml"))


def background(world: World) -> list[Json]:
    return [document(world, path) for path in JOBS]


def document(world: World, path: Path) -> Json:
    """The example's job, with checkpoints of this cluster's S3 server where it saves any."""
    found: Json = yaml.safe_load(path.read_text())
    name = f"outside-{path.stem.replace('_', '-')}"
    found["metadata"] = {"name": name, "namespace": world.namespace}
    found["spec"]["image"] = images.EXAMPLES
    if "checkpoint" in found["spec"]:
        found["spec"]["checkpoint"] |= {"uri": world.uri(name)}
    return found


def test_there_are_three_scripts_from_outside() -> None:
    assert len(JOBS) == 3


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_script_from_outside_succeeds(world: World, path: Path) -> None:
    world.until_succeeded(document(world, path)["metadata"]["name"])
