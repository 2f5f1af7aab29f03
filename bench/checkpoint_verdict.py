"""What `bench/checkpoint.py` makes of its figures: a table for each gang, and each target beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from report import Target

Figures = dict[str, float]

COLUMNS: Final = (
    "stall s", "durable MB/s", "with training", "CPU s/GB", "steps slower", "memory × state", "sent × state",
    "restore MB/s", "CPU s/GB", "memory × state",
)  # fmt: skip


def table(title: str, medians: Mapping[str, Figures]) -> None:
    """Markdown, as the docs have it."""
    print(f"\n{title}\n\n| | first save s | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 2)}")
    for name, f in medians.items():
        size = f["state_bytes"]
        beside = not math.isnan(f["slowdown"])
        cells = [
            f"{f['first_save_s']:.2f}",
            f"{f['stall_s']:.3f}",
            f"{size / 1e6 / f['durable_s']:.0f}",
            f"{size / 1e6 / f['beside_s']:.0f}" if beside else "",
            f"{f['cpu_s'] / size * 1e9:.1f}",
            f"{100 * (f['slowdown'] - 1):.0f} %" if beside else "",
            f"{f['save_peak_bytes'] / size:.2f}",
            f"{f['sent']:.3f}" if f["sent"] else "",  # the server's log has no size of an upload's parts
            f"{size / 1e6 / f['restore_s']:.0f}",
            f"{f['restore_cpu_s'] / size * 1e9:.1f}",
            f"{f['restore_peak_bytes'] / size:.2f}" if name != "put_object" else "",
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def judge(results: Mapping[Any, Mapping[str, Figures]]) -> tuple[Figures, dict[str, Target], dict[str, str]]:
    """Figures, targets and notes for the report, in percent; ratios are turned so that smaller is better."""
    figures: Figures = {}
    targets: dict[str, Target] = {}
    notes: dict[str, str] = {}
    for case, medians in results.items():
        for name, ratio, at_most, note in _figures(str(case), medians):
            key = f"{case}_{name}"
            figures[key], targets[key], notes[key] = 100 * ratio, Target(round(100 * at_most, 1)), note
    return figures, targets, notes


def _figures(case: str, medians: Mapping[str, Figures]) -> Iterator[tuple[str, float, float, str]]:
    """(name, ratio, the most that is allowed, what it is)."""
    wrong = sum(f["same"] == 0 for name, f in medians.items() if name != "put_object")
    yield "wrong", wrong, 0, "contenders that restored other bits"
    ours = medians.get("muster")
    if ours is None:
        return
    others = {name: f for name, f in medians.items() if name not in ("muster", "muster-memory", "put_object")}
    connector = [f for name, f in others.items() if name.startswith("s3torch")]
    if "muster-memory" in medians:
        yield "restore_from_memory", medians["muster-memory"]["restore_s"] / ours["restore_s"], 1 / 5, "of S3's time"
    if "torch.save" in others:
        yield "stall", ours["stall_s"] / others["torch.save"]["stall_s"], 1 / 50, "of torch.save's"
    if others:
        yield "stall_of_lowest", ours["stall_s"] / min(f["stall_s"] for f in others.values()), 1, "of the lowest other"
    if "put_object" in medians:
        yield "durable_put", ours["durable_s"] / medians["put_object"]["durable_s"], 1 / 0.95, "time, of plain puts'"
    if connector:
        quickest = min(f["durable_s"] for f in connector)
        yield "durable_connector", ours["durable_s"] / quickest, 1 / 1.15, "time, of s3torchconnector's"
        for key, what in (("restore_s", "time"), ("restore_cpu_s", "CPU")):
            yield key[:-2], ours[key] / min(f[key] for f in connector), 1 / 4, f"{what}, of s3torchconnector's"
    if case.startswith("fsdp1_") and not math.isnan(ours["slowdown"]):
        yield "slower", ours["slowdown"] - 1, 0.1, "steps with a save in the background"
    yield "save_memory", ours["save_peak_bytes"] / ours["state_bytes"], 1.2, "of the state, above training"
    if "muster-memory" in medians:
        tier = medians["muster-memory"]
        yield "tier_memory", tier["save_peak_bytes"] / tier["state_bytes"], 2.2, "of the state, above training"
    yield "restore_memory", ours["restore_peak_bytes"] / ours["state_bytes"], 0.2, "of the state"
    yield "sent", ours["sent"], 1.01, "bytes to S3, of the state"
