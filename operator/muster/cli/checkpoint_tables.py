"""What `muster checkpoint` shows, for people and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

import typer
from rich.console import Console

from muster.cli.printing import PlainTable, print_table
from muster.sizing.prices import catalogue
from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.commit import claimant
from muster_protocol.checkpoints.differences import Difference
from muster_protocol.checkpoints.inventory import Checkpoint, Folder, Inventory
from muster_protocol.checkpoints.prune import Outcome
from muster_protocol.checkpoints.retention import Plan, Retention, kept_by, protected
from muster_protocol.checkpoints.tensors import tensors_of
from muster_protocol.counts import counted

Row = dict[str, Any]
_UNITS: Final = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
TENSORS_SHOWN: Final = 20
LIST_REGION: Final = "aws/us-east-1"
"""Whose list price a gigabyte is reckoned at where no other is given."""


def amount(size: float) -> str:
    """Like 4.20 GB: decimal units, as S3 is billed."""
    for unit, scale in _UNITS:
        if size >= scale:
            return f"{size / scale:,.2f} {unit}"
    return f"{size:.0f} B"


def natural(name: str) -> tuple[int, list[tuple[str, int]]]:
    """Sorts tensors' names as people count: layer 3 before layer 10; models, then optimizers, Muster's own last."""
    last = ("optimizer", "muster").index(first) + 1 if (first := name.split(".")[0]) in ("optimizer", "muster") else 0
    return last, [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def listing(inventory: Inventory, now: float, *, everything: bool) -> list[Row]:
    """One row a checkpoint: the committed ones, then those whose manifest is damaged, then what was never committed."""
    reasons = kept_by(inventory, Retention(last=1), now)
    always = protected(inventory)
    rows = [
        {
            "step": each.step,
            "epoch": each.epoch,
            "saved": moment(each.created_at),
            "bytes": each.bytes,
            "worldSize": each.world_size,
            "state": "committed",
            "keptBy": [why for why in reasons[each.key] if why != "last 1"],
            "latest": always.get(each.key) == "LATEST",
            "metrics": dict(each.metrics),
            "manifest": each.key,
        }
        for each in inventory.newest_first
    ]
    rows += [{"state": "damaged", "manifest": each.key, "trouble": each.reason} for each in inventory.damaged]
    if everything:
        rows += [
            {
                "step": folder.step,
                "epoch": folder.epoch,
                "saved": moment(folder.modified),
                "bytes": folder.bytes,
                "state": _state(inventory, folder),
                "manifest": folder.manifest,
            }
            for folder in inventory.orphans
        ]
        rows += [
            {"saved": moment(each.started), "bytes": each.size, "state": "unfinished upload", "manifest": each.key}
            for each in inventory.unfinished
        ]
    return rows


def _state(inventory: Inventory, orphan: Folder) -> str:
    if orphan.tombstones and not orphan.manifest:
        return "half deleted"
    return "a link to it may be lost" if inventory.may_be_committed(orphan) else "never committed"


def print_listing(inventory: Inventory, rows: Sequence[Row], metrics: Sequence[str] = ()) -> None:
    """`metrics`: names of those that get a column each."""
    if not rows:
        if inventory.latest is not None:
            typer.echo(f"{inventory.uri} has no checkpoints yet; {claimant(inventory.latest)} has claimed it")
        return
    cells = [
        (
            str(row.get("step", "")),
            str(row.get("epoch", "")),
            row.get("saved", ""),
            amount(row["bytes"]) if "bytes" in row else "",
            str(row.get("worldSize", "")),
            *(f"{row['metrics'][name]:.6g}" if name in row.get("metrics", ()) else "" for name in metrics),
            ", ".join(row.get("keptBy", ())) if row["state"] == "committed" else _stray(row),
        )
        for row in rows
    ]
    _print(("STEP", "CLAIM", "SAVED", "SIZE", "RANKS", *map(str.upper, metrics), "KEPT BY"), cells)


def print_runs(uri: str, runs: Sequence[str], everything: bool) -> None:
    """`runs` are the prefixes below `uri` that hold one; `everything`: there are no others."""
    if not runs and everything:
        typer.echo(f"{uri} has no checkpoints")
        return
    below = "the runs below it:" if runs else "no run was found below it"
    typer.echo(f"{uri} has no checkpoints of its own; {below}")
    for run in runs:
        typer.echo(f"  {uri}/{run}")
    if not everything:
        typer.echo("not all folders were looked into; name one of them to see the runs in it")


def _stray(row: Row) -> str:
    return f"DAMAGED: {row['trouble']}" if "trouble" in row else f"({row['state']})"


def facts(inventory: Inventory, checkpoint: Checkpoint, found: Found, now: float) -> Row:
    """Everything about one checkpoint."""
    record = found.manifest
    tensors = tensors_of(record)
    return {
        "uri": inventory.uri,
        "step": record.step,
        "epoch": record.epoch,
        "attempt": record.attempt,
        "saved": moment(record.created_at),
        "job": record.job,
        "worldSize": record.world_size,
        "bytes": checkpoint.bytes,
        "keptBy": [why for why in kept_by(inventory, Retention(last=1), now)[checkpoint.key] if why != "last 1"],
        "metrics": dict(record.metrics),
        "parent": record.parent,
        "manifest": found.key,
        "sha256": found.sha256,
        "run": record.planner.get("run", {}),
        "objects": list(record.planner.get("trees", {})),
        "files": [{"key": file.key, "bytes": file.size} for file in record.files],
        "tensors": [
            {"name": each.name, "dtype": each.dtype, "shape": list(each.shape), "chunks": len(each.chunks)}
            for each in sorted(tensors.values(), key=lambda each: natural(each.name))
        ],
    }


def print_facts(found: Row) -> None:
    files, tensors = found["files"], found["tensors"]
    lines = {
        "step": found["step"],
        "saved": f"{found['saved']} by {counted(found['worldSize'], 'rank')}"
        + (f" of {found['job']}" if found["job"] else ""),
        "claim": f"{found['epoch']}, attempt {found['attempt']}",
        "size": f"{amount(found['bytes'])} in {counted(len(files), 'file')}, {counted(len(tensors), 'tensor')}",
        "kept by": ", ".join(found["keptBy"]) or "nothing but its job's retention",
        "metrics": ", ".join(f"{name} {value:.6g}" for name, value in found["metrics"].items()) or "none",
        "objects": ", ".join(found["objects"]),
        "parent": found["parent"] or "none",
        "manifest": f"{found['uri']}/{found['manifest']}",
    }
    for name, value in lines.items():
        typer.echo(f"{name:<10}{value}")
    typer.echo("")
    shown = tensors[:TENSORS_SHOWN]
    _print(
        ("TENSOR", "TYPE", "SHAPE", "CHUNKS"),
        [(each["name"], each["dtype"], str(each["shape"]), str(each["chunks"])) for each in shown],
    )
    if len(tensors) > len(shown):
        typer.echo(f"and {len(tensors) - len(shown)} more; -o json has them all")


def print_verified(result: Row) -> None:
    name = result["key"] if result["step"] is None else f"step {result['step']}"
    state = "left out" if result["leftOut"] else "DAMAGED" if result["troubles"] else "whole"
    typer.echo(f"{name}: {state}, {amount(result['bytes'])}")
    for why in [result["leftOut"]] if result["leftOut"] else result["troubles"]:
        typer.echo(f"  {why}")


def print_verdict(results: Sequence[Row]) -> None:
    read = [result for result in results if not result["leftOut"]]
    whole = sum(not result["troubles"] for result in read)
    verb = "is" if len(read) == 1 else "are"
    left_out = f", {len(results) - len(read)} left out" if len(read) < len(results) else ""
    typer.echo(f"{whole} of {counted(len(read), 'checkpoint')} {verb} whole{left_out}")


def print_differences(found: Sequence[Difference]) -> None:
    shown = sorted((each for each in found if each.kind != "same"), key=lambda each: natural(each.name))
    if shown:
        rows = [(each.kind, each.name, each.detail, "" if each.bytes is None else amount(each.bytes)) for each in shown]
        _print(("WHAT", "TENSOR", "FORM", "CHANGED"), rows)
    typer.echo(
        f"{len(found) - len(shown)} of {counted(len(found), 'tensor')} {'is' if len(found) == 1 else 'are'} the same"
    )


def pruning(planned: Plan, outcome: Outcome | None, price: float) -> Row:
    """What goes, or has gone; `price` is dollars for a GB and month."""
    removals = planned.removals if outcome is None else outcome.removed
    size = planned.bytes if outcome is None else outcome.bytes
    return {
        "done": outcome is not None,
        "remove": [
            {"step": each.folder.step, "epoch": each.folder.epoch, "bytes": each.bytes, "why": each.why}
            for each in removals
        ],
        "keep": [{"step": each.step, "epoch": each.epoch, "by": list(why)} for each, why in planned.kept],
        "spared": [] if outcome is None else [{"folder": folder, "why": why} for folder, why in outcome.spared],
        "unfinishedUploads": len(planned.unfinished),
        "bytes": size,
        "dollarsPerMonth": round(size / 1e9 * price, 4),
        "pricePerGBMonth": price,
    }


def print_pruning(report: Mapping[str, Any]) -> None:
    rows = [("keep", str(each["step"]), str(each["epoch"]), "", ", ".join(each["by"])) for each in report["keep"]]
    verb = "deleted" if report["done"] else "delete"
    rows += [
        (verb, str(each["step"]), str(each["epoch"]), amount(each["bytes"]), each["why"]) for each in report["remove"]
    ]
    if rows:
        _print(("", "STEP", "CLAIM", "SIZE", "WHY"), rows)
    for each in report["spared"]:
        typer.echo(f"spared {each['folder']}: {each['why']}")
    if report["unfinishedUploads"]:
        typer.echo(f"{report['unfinishedUploads']} unfinished uploads {'freed' if report['done'] else 'to free'}")
    money = f"${report['dollarsPerMonth']:,.2f} a month at ${report['pricePerGBMonth']} for a GB and month"
    if report["done"]:
        typer.echo(f"{amount(report['bytes'])} freed: {money}")
    else:
        typer.echo(f"{amount(report['bytes'])} would be freed: {money}. Nothing was deleted; --yes does it")


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table as wide as it is: what reads it line by line is not to meet half a word."""
    table = PlainTable(titles, rows)
    print_table(Console(highlight=False, markup=False), table)


def list_price() -> float:
    """Dollars for a gigabyte and month, as `muster prices list` has it."""
    found = catalogue(region=LIST_REGION).storage(datetime.now(timezone.utc))
    assert found is not None, f"the public list prices have no storage in {LIST_REGION}"
    return float(found.amount)
