"""The pages name what is there: links and anchors, commands with their options, targets of make, fields, metrics."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from muster.api.crd import custom_resource_definition
from muster.api.kinds import KINDS
from muster.cli.app import app

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")
COMMAND = re.compile(r"(?:^|`|\$ )(?:kubectl |\.venv/bin/)?muster ([a-z][^`\n|#;&)]*)", re.MULTILINE)
TARGET = re.compile(r"(?:`make |^make (?=[a-z-]+(?: +[A-Z#].*)?$))([a-z][a-z-]*)", re.MULTILINE)
FIELD = re.compile(r"(?<![\w.'])(spec|status)((?:\.[a-z]\w+)+)")
METRIC = re.compile(r"`(muster_\w*[a-z])(?:\{[^}]*\})?`")
OF_PODS = {"spec.nodeName", "status.podIP"}
NO_FIELDS = {"py", "value"}
"""What a dot may stand before else: `status.py`, an attribute in a script."""


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def found(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Each match, with its page and line."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in pattern.finditer(text):
            yield f"{shown(page)}:{text.count(chr(10), 0, match.start()) + 1}", match


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them of the headings."""
    slugs: list[str] = []
    for heading in re.findall(r"^#+ (.*)", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        before = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other) is not None for other in slugs)
        slugs.append(f"{slug}-{before}" if before else slug)
    return frozenset(slugs)


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            other = (page.parent / name).resolve() if name else page
            if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors(other)):
                broken.append(f"{shown(page)}: {target}")
    assert broken == []


def of_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and what stands behind its name."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_every_command_and_option_of_muster_is_there() -> None:
    wrong, right = [], 0
    for where, match in found(COMMAND):
        command, rest = of_command(shlex.split(match[1].replace("'", "").replace('"', "")))
        known = {"--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
        unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]
        no_command = hasattr(command, "commands") and rest and not unknown
        wrong += [f"{where}: muster {match[1]}"] if unknown or no_command else []
        right += 1
    assert wrong == []
    assert right > 100


def test_every_target_of_make_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [(where, match[1]) for where, match in found(TARGET)]
    assert [(where, name) for where, name in named if name not in targets] == []
    assert len(named) > 20


def has(schema: Mapping[str, Any], path: list[str]) -> bool:
    while schema.get("type") == "array":
        schema = schema["items"]
    if not path or schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema:
        return True
    known = schema.get("properties", {})
    return path[0] in known and has(known[path[0]], path[1:])


def test_every_field_is_one_of_some_kind() -> None:
    definitions = [custom_resource_definition(kind)["spec"]["versions"][0] for kind in KINDS]
    schemas = [definition["schema"]["openAPIV3Schema"] for definition in definitions]
    unknown = []
    for where, match in found(FIELD):
        name, path = match[0], match[0].split(".")
        fine = name in OF_PODS or path[1] in NO_FIELDS or any(has(schema, path) for schema in schemas)
        unknown += [] if fine else [f"{where}: {name}"]
    assert unknown == []


def test_every_metric_is_in_the_reference() -> None:
    known = set(re.findall(r"\bmuster_\w+", (ROOT / "docs" / "reference" / "metrics.md").read_text()))
    modules = {"muster_runtime", "muster_protocol"}
    named = [(where, match[1]) for where, match in found(METRIC) if match[1] not in modules]
    assert [(where, name) for where, name in named if name not in known] == []
    assert len(named) > 50
