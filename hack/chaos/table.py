"""The table of docs/reliability.md. Pure, but for `write`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.chaos import results
from hack.chaos.results import Outcome, Result, Target

PAGE = results.ROOT / "docs" / "reliability.md"
BEGIN = "<!-- made by `make chaos`: begin -->"
END = "<!-- made by `make chaos`: end -->"


@dataclass(frozen=True)
class Entry:
    """A row of the table: its name, the fault in words, what it has to keep to, its newest runs, and void ones."""

    name: str
    fault: str
    target: Target
    runs: Sequence[Result]
    void: Sequence[Result] = ()


def render(entries: Sequence[Entry]) -> str:
    """Markdown: one line for each row that was run, then what was missed, and what was void."""
    head = (
        "| fault | runs | to the next new step: median, worst | steps lost: worst | GPU-seconds lost: median, worst"
        " | new pods: most | losses as without the fault | target |"
    )
    rows = [head, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    rows += [_line(entry) for entry in entries if entry.runs]
    parts = ["\n".join(rows)]
    missed = [_missed(run) for entry in entries for run in entry.runs if run.outcome == Outcome.MISSED.value]
    if missed:
        parts.append("What missed its target:\n\n" + "\n".join(missed))
    void = [_missed(run) for entry in entries for run in entry.void]
    if void:
        parts.append("Void, so nothing is known:\n\n" + "\n".join(void))
    parts.append(_where(entries))
    return "\n\n".join(part for part in parts if part)


def _line(entry: Entry) -> str:
    seconds = [run.seconds for run in entry.runs if run.seconds is not None]
    lost = [run.gpu_seconds_lost for run in entry.runs if run.gpu_seconds_lost is not None]
    steps = [run.steps_lost for run in entry.runs if run.steps_lost is not None]
    pods = [run.new_pods for run in entry.runs if run.new_pods is not None]
    met = sum(run.outcome == Outcome.MET.value for run in entry.runs)
    cells = [
        f"`{entry.name}`: {entry.fault}",
        str(len(entry.runs)),
        _spread(seconds, " s"),
        str(max(steps)) if steps else "-",
        _spread(lost, ""),
        str(max(pods)) if pods else "-",
        _losses(entry.runs),
        f"{_promise(entry.target)}: {met} of {len(entry.runs)}",
    ]
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float], unit: str) -> str:
    return f"{statistics.median(values):.1f}{unit}, {max(values):.1f}{unit}" if values else "-"


def _losses(runs: Sequence[Result]) -> str:
    """Of all runs: the weakest that holds."""
    told = {run.losses for run in runs}
    for word in ("different", "", "same samples"):
        if word in told:
            return {"different": "NO", "": "not compared", "same samples": "yes, same samples"}[word]
    return "yes, bitwise"


def _promise(target: Target) -> str:
    parts = [f"≤ {target.seconds:g} s"] if target.seconds is not None else []
    parts += [f"≤ {target.steps_lost} steps"] if target.steps_lost is not None else []
    if target.new_pods is not None:
        parts.append("no new pod" if target.new_pods == 0 else f"≤ {target.new_pods} new pods")
    return ", ".join([*parts, target.losses.value])


def _missed(run: Result) -> str:
    told = f" ({run.fault})" if run.fault else ""
    return f"* `{run.row}`, seed {run.seed}, {run.when}: {run.why}{told}"


def _where(entries: Sequence[Entry]) -> str:
    """The machines and versions behind the table."""
    runs = [run for entry in entries for run in entry.runs]
    machines = sorted({run.machine for run in runs})
    versions = sorted({run.version for run in runs})
    if not runs:
        return "No run is on record."
    load = statistics.median(run.load for run in runs)
    first, last = min(run.when for run in runs), max(run.when for run in runs)
    return (
        f"{len(runs)} runs from {first} to {last} on {'; '.join(machines)}; the machine's load at the fault: {load:.1f}"
        f" (median); images {', '.join(versions)}."
    )


def replaced(page: str, table: str) -> str:
    """The page with the table in its place. Raises ValueError when the page has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the table: the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def write(entries: Sequence[Entry], page: Path = PAGE) -> None:
    page.write_text(replaced(page.read_text(), render(entries)))
