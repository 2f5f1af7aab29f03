"""`muster checkpoint`: a run's checkpoints, by its uri alone. Needs no cluster."""

from __future__ import annotations

import math
import shlex
import signal
import time
from typing import Annotated, Final

import typer

from muster.cli import checkpoint_tables as tables
from muster.cli.checkpoint_damage import to_verify, verified
from muster.cli.checkpoint_stores import (
    chosen,
    explained,
    located,
    manifest_of,
    misspelt,
    of_run,
    of_target,
    opened,
    reading,
    uri_of,
    who,
)
from muster.cli.printing import As, Output, fail, note, print_json
from muster_protocol.checkpoints.chain import read_manifest
from muster_protocol.checkpoints.commit import claim_epoch
from muster_protocol.checkpoints.copy import copy
from muster_protocol.checkpoints.differences import differences
from muster_protocol.checkpoints.export import SHARD_BYTES, export, exported_before, model_tensors
from muster_protocol.checkpoints.holds import release, tag
from muster_protocol.checkpoints.importing import import_model
from muster_protocol.checkpoints.inventory import Inventory, runs_below, take
from muster_protocol.checkpoints.prune import carry_out
from muster_protocol.checkpoints.retention import (
    ORPHAN_SECONDS,
    Retention,
    claimed_anew,
    parse_best,
    plan,
    unknown_metric,
)
from muster_protocol.checkpoints.store import NOTHING
from muster_protocol.checkpoints.tensors import tensors_of
from muster_protocol.counts import counted
from muster_protocol.spelling import there_are
from muster_protocol.uris import parse_uri, parse_uri_at_step

app = typer.Typer(
    help="A run's checkpoints: list, verify, keep, prune, export, copy. Needs S3 alone, no cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)

Uri = Annotated[str, typer.Argument(metavar="URI", help="s3://BUCKET/PREFIX or file:///FOLDER.")]
UriAtStep = Annotated[
    str, typer.Argument(metavar="URI[@STEP]", help="The committed checkpoint, or the one at a step: URI@STEP.")
]
Endpoint = Annotated[
    str | None, typer.Option(help="URL of the S3 server; else AWS_ENDPOINT_URL_S3, or AWS's own.", show_default=False)
]


@app.callback()
def _begin() -> None:
    # Who is asked to end, by Kubernetes or a CI system, or whose terminal has gone, leaves what Ctrl-C leaves: no hold,
    # and no upload to pay for.
    for number in _ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    for again in _ENDS:  # a shell passes on what the terminal has sent already: that must not cut the tidying up
        signal.signal(again, signal.SIG_IGN)
    raise SystemExit(128 + number)


@app.command("ls")
def list_(
    uri: Uri,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also what was never committed.")] = False,
    metric: Annotated[
        list[str] | None, typer.Option(help="A column for this metric, as it was at the save; may be given again.")
    ] = None,
    endpoint: Endpoint = None,
    output: As = Output.TABLE,
) -> None:
    """List the committed checkpoints, newest first, and what keeps each.

    Where no run is, name those below; where nothing is at all, end with 2.

    \b
      muster checkpoint ls s3://models/llama-8b
      muster checkpoint ls s3://models
    """
    with explained(), of_run(uri, endpoint) as store:
        inventory = take(store, unfinished=everything)
        _warn_of(inventory)
        rows = tables.listing(inventory, time.time(), everything=everything)
        if not rows and store.level("") == NOTHING:
            near = misspelt(parse_uri(uri), endpoint)
            fail(f"nothing lies at {store.uri}{f'; did you mean {near}?' if near else ''}")
        if output is Output.JSON:
            print_json(rows)
        elif rows or inventory.folders or inventory.latest is not None:
            known = {name for row in rows for name in row.get("metrics", ())}
            for name in metric or ():
                if name not in known:
                    note(f"none of these has a metric {name}; {there_are(name, known)}")
            tables.print_listing(inventory, rows, metric or ())
        else:
            tables.print_runs(inventory.uri, *runs_below(store))


@app.command()
def show(uri: UriAtStep, endpoint: Endpoint = None, output: As = Output.TABLE) -> None:
    """Show one checkpoint: its origin, metrics, files and tensors.

    \b
      muster checkpoint show s3://models/llama-8b@1200
    """
    with explained(), chosen(uri, endpoint) as (store, inventory, checkpoint):
        found = read_manifest(store, checkpoint.key, checkpoint.sha256)
        facts = tables.facts(inventory, checkpoint, found, time.time())
        if output is Output.JSON:
            print_json(facts)
        else:
            tables.print_facts(facts)


@app.command()
def verify(
    uri: UriAtStep,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every committed checkpoint of the run.")] = False,
    endpoint: Endpoint = None,
    output: As = Output.TABLE,
) -> None:
    """Read every byte and check it.

    Ends with 1 when something is missing or isn't what was saved. --all leaves out what a prune deletes meanwhile.

    \b
      muster checkpoint verify s3://models/llama-8b --all
    """
    with explained(), located(uri, endpoint) as (store, inventory, step):
        lost, readable = to_verify(inventory, step, everything=everything)
        results = []
        for result in verified(store, lost, readable, by_name=not everything):
            results.append(result)
            if output is Output.TABLE:
                tables.print_verified(result)
        if output is Output.JSON:
            print_json(results)
        else:
            tables.print_verdict(results)
    raise typer.Exit(1 if any(result["troubles"] for result in results) else 0)


@app.command()
def diff(
    before: UriAtStep,
    after: Annotated[str, typer.Argument(metavar="URI[@STEP]|@STEP", help="Another, or @STEP of the same run.")],
    read: Annotated[bool, typer.Option("--read", help="Compare by content where the two are cut differently.")] = False,
    endpoint: Endpoint = None,
    output: As = Output.TABLE,
) -> None:
    """Compare two checkpoints' tensors.

    Which were added, removed or reshaped, and how many bytes have changed.

    \b
      muster checkpoint diff s3://models/llama-8b@1000 @1200
    """
    with (
        explained(),
        chosen(before, endpoint) as (old_store, _, old),
        chosen(f"{old_store.uri}{after}" if after.startswith("@") else after, endpoint) as (new_store, _, new),
        reading(old_store, old, "diff"),
        reading(new_store, new, "diff"),
    ):
        sides = [
            (store, tensors_of(read_manifest(store, one.key, one.sha256).manifest))
            for store, one in ((old_store, old), (new_store, new))
        ]
        found = differences(sides[0], sides[1], read=read)
        if output is Output.JSON:
            print_json([vars(each) for each in found])
        else:
            tables.print_differences(found)


@app.command()
def keep(
    uri: UriAtStep,
    name: Annotated[str | None, typer.Option(help="Name of the tag; else step-STEP.", show_default=False)] = None,
    let_go: Annotated[bool, typer.Option("--release", help="Take the tag away again.")] = False,
    endpoint: Endpoint = None,
) -> None:
    """Tag a checkpoint: nothing deletes it until it is released.

    \b
      muster checkpoint keep s3://models/llama-8b@1200 --name paper
      muster checkpoint keep s3://models/llama-8b --name paper --release
    """
    with explained():
        if let_go:
            parsed, step = parse_uri_at_step(uri)
            if name is None and step is None:
                fail(f"say which tag: muster checkpoint keep {uri} --release --name NAME, or {uri}@STEP --release")
            with opened(str(parsed), endpoint) as store:
                release(store, name or f"step-{step}")
            typer.echo(f"released {name or f'step-{step}'}")
            return
        with chosen(uri, endpoint) as (store, _, checkpoint):
            made = tag(store, checkpoint.key, checkpoint.sha256, name or f"step-{checkpoint.step}", who("keep"))
            typer.echo(f"step {checkpoint.step} is kept as {made.id}")


@app.command()
def prune(
    uri: Uri,
    last: Annotated[int | None, typer.Option(help="Keep the newest so many.", min=1, show_default=False)] = None,
    every: Annotated[
        int | None, typer.Option(help="Keep those at multiples of so many steps.", min=1, show_default=False)
    ] = None,
    every_hours: Annotated[
        int | None, typer.Option(help="Keep the first of each span of so many hours.", min=1, show_default=False)
    ] = None,
    best: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC[:min|max[:COUNT]]", help="Keep the best by a metric.", show_default=False),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            help=f"Dollars for a GB and month; else the list price of {tables.LIST_REGION}.", min=0, show_default=False
        ),
    ] = None,
    job_gone: Annotated[
        bool, typer.Option("--job-gone", help="Nobody trains into it any more: what was never committed goes at once.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go; the default.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete it.")] = False,
    endpoint: Endpoint = None,
    output: As = Output.TABLE,
) -> None:
    """Delete what no rule keeps; without --yes, say what that would be.

    What was never committed goes, too. Without a rule every committed checkpoint stays. The committed one, its two
    ancestors, tags, and what somebody reads always stay. A job prunes by its own spec.checkpoint.retention.

    What the last gang left uncommitted stays, for it may yet be committed. Where its job is deleted, --job-gone says
    so: the run is claimed first, so nothing late is committed. A gang that does train starts again at its next save.

    \b
      muster checkpoint prune s3://models/llama-8b --last 3 --best loss:min --yes
      muster checkpoint prune s3://models/llama-8b --job-gone --yes
    """
    if dry_run and yes:
        fail("--dry-run and --yes contradict each other; give one of them")
    if best is not None and len(best) > 1:  # only the last would count, and what is the best by the others would go
        fail(f"a prune has one --best, not {len(best)}; keep the best by {best[0]} by a tag: muster checkpoint keep")
    with explained():
        rules = Retention(
            last, every, every_hours * 3600 if every_hours else None, parse_best(best[0]) if best else None
        )
        with of_run(uri, endpoint) as store:
            inventory = take(store)
            if rules.best and (wrong := unknown_metric(inventory, rules.best)):
                fail(wrong)
            _warn_of(inventory)
            if inventory.empty:
                fail(f"{store.uri} has no checkpoints; is it some job's spec.checkpoint.uri?")
            if job_gone and yes and inventory.latest is not None:
                claim_epoch(store, who("prune"))
                inventory = take(store)
            elif job_gone:
                if inventory.committed and output is Output.TABLE:
                    saved = tables.moment(max(each.created_at for each in inventory.committed))
                    note(f"its last save was at {saved}: with --yes a job that still trains there starts again from it")
                inventory = claimed_anew(inventory)
            planned = plan(inventory, rules, time.time(), -math.inf if job_gone else ORPHAN_SECONDS)
            outcome = carry_out(store, planned, time.time) if yes else None
        report = tables.pruning(planned, outcome, tables.list_price() if price is None else price)
        if output is Output.JSON:
            print_json(report)
        else:
            tables.print_pruning(report)


@app.command("export")
def export_(
    uri: UriAtStep,
    target: Annotated[str, typer.Argument(metavar="FOLDER|URI", help="A folder, or s3://BUCKET/PREFIX.")],
    name: Annotated[str, typer.Option("--object", help="Which tracked object.")] = "model",
    shard_size: Annotated[int, typer.Option(help="Bytes in one file at most.", min=1)] = SHARD_BYTES,
    force: Annotated[bool, typer.Option("--force", help="Replace the model that lies there.")] = False,
    endpoint: Endpoint = None,
) -> None:
    """Write a model as safetensors, in the layout of Hugging Face's hub.

    \b
      muster checkpoint export s3://models/llama-8b ./llama-8b
    """
    where = uri_of(target)
    with (
        explained(),
        chosen(uri, endpoint) as (store, _, checkpoint),
        opened(where, endpoint) as there,
        reading(store, checkpoint, "export"),
    ):
        tensors, left_out = model_tensors(manifest_of(store, checkpoint), name)
        if left_out:
            note(f"left out, since safetensors takes tensors alone: {', '.join(left_out)}")
        old = exported_before(there, force=force)
        files = export(store, tensors, there, shard_bytes=shard_size, old=old)
        size = sum(tensor.bytes for tensor in tensors.values())
        typer.echo(f"step {checkpoint.step}: {counted(len(tensors), 'tensor')}, {tables.amount(size)}, in {there.uri}:")
        for file in files:
            typer.echo(f"  {file}")


@app.command("import")
def import_(
    folder: Annotated[str, typer.Argument(metavar="FOLDER|URI", help="A folder, or s3://BUCKET/PREFIX.")],
    target: Annotated[str, typer.Argument(metavar="URI", help="Where no run is yet: s3://BUCKET/PREFIX.")],
    name: Annotated[str, typer.Option("--object", help="As which tracked object.")] = "model",
    endpoint: Endpoint = None,
) -> None:
    """Make a checkpoint of a model in Hugging Face's layout.

    It is committed as the first one of a new run.

    \b
      muster checkpoint import ./llama-8b s3://models/llama-8b-tuned
    """
    where = uri_of(folder)
    with explained(), opened(where, endpoint) as store, of_run(target, endpoint) as there:
        size = import_model(store, there, name)
        typer.echo(f"{store.uri} is committed in {there.uri} as the object {name}: {tables.amount(size)}")
        source = there.uri
        if there.uri.startswith("file://"):
            source = "s3://BUCKET/PREFIX"
            typer.echo(f"jobs read S3 alone, so copy it there:  muster checkpoint cp {shlex.quote(there.uri)} {source}")
        typer.echo(f"start a job from it by checkpoint: {{from: {source!r}, load: model}}")


@app.command()
def cp(
    uri: UriAtStep,
    target: Annotated[str, typer.Argument(metavar="URI", help="Where no run is yet: s3://BUCKET/PREFIX.")],
    endpoint: Endpoint = None,
    target_endpoint: Annotated[
        str | None, typer.Option(help="URL of the target's S3 server; else the same.", show_default=False)
    ] = None,
) -> None:
    """Copy one checkpoint to another prefix or store.

    It is committed there as the first one of a new run.

    \b
      muster checkpoint cp s3://models/llama-8b@1200 s3://archive/llama-8b
    """
    with (
        explained(),
        chosen(uri, endpoint) as (store, _, checkpoint),
        of_target(target, target_endpoint, endpoint) as there,
        reading(store, checkpoint, "cp"),
    ):
        size = copy(store, manifest_of(store, checkpoint), there)
        typer.echo(f"step {checkpoint.step} of {store.uri} is committed in {there.uri}: {tables.amount(size)}")


def _warn_of(inventory: Inventory) -> None:
    for trouble in (inventory.unlisted, inventory.unnamed):
        if trouble:
            note(trouble)
