"""Jobs that somebody applies beside what `make demo` has left, and beside one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.demo import run

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
LOCAL = ("gpt", "outside")
"""Folders whose jobs run in the local cluster as they are."""


def jobs(folders: str) -> Iterator[dict[str, Any]]:
    for path in (ROOT / "examples").glob(f"{folders}/*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if document.get("kind") == "TrainingJob":
                yield document


def test_no_two_jobs_write_to_one_place_nor_does_any_to_the_demos() -> None:
    of_demo = [run._named({"metadata": {}, "spec": {}}, name, "research", "models") for name in run.JOBS]
    everything = [*jobs("*"), *of_demo]
    assert len(everything) > 20
    names = Counter(job["metadata"]["name"] for job in everything)
    assert [name for name, count in names.items() if count > 1] == []
    uris = Counter(uri for job in everything if (uri := (job["spec"].get("checkpoint") or {}).get("uri")))
    assert [uri for uri, count in uris.items() if count > 1] == []


def test_what_runs_in_the_local_cluster_is_applied_where_its_secret_is() -> None:
    said = 0
    for folder in LOCAL:
        for path in (ROOT / "examples" / folder).iterdir():
            for line in path.read_text().splitlines() if path.suffix in (".md", ".yaml") else ():
                if "kubectl apply" in line:
                    said += 1
                    assert "-n research" in line, f"{path}: {line}"
    assert said > 3
