"""`muster cost reconcile`: what checkpoints take in their buckets, told to the history. For who may read the buckets:
the operator may not, and what is deleted outside a run tells nobody."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import Console

from muster.cli.checkpoint_stores import open_store
from muster.cli.checkpoint_tables import amount
from muster.cli.printing import As, Output, PlainTable, fail, note, print_json, print_table
from muster.cli.stored_history import HISTORY_URL, history
from muster_protocol.checkpoints.inventory import take
from muster_protocol.counts import counted
from muster_protocol.errors import MusterError
from muster_protocol.spelling import there_are
from muster_protocol.uris import parse_uri


def reconcile(
    database: Annotated[
        str,
        typer.Option(envvar=HISTORY_URL, help="URL of the history's database; a password is safer in the variable."),
    ],
    under: Annotated[str, typer.Option(help="Only uris that begin with this.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what has changed.")] = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="URL of the S3 server, in place of the one that a job names; without either AWS_ENDPOINT_URL_S3, "
            "or AWS's own.",
            show_default=False,
        ),
    ] = None,
    output: As = Output.TABLE,
) -> None:
    """Look at what checkpoints take in their buckets now.

    The cost report counts it from now on. A run tells by itself what it saves and deletes. Run this after `muster
    checkpoint prune`, after deleting a run's checkpoints by hand or by a rule of the bucket, or once a day. Needs read
    access to the buckets, as the AWS tools do, and write access to the database. Exits with 1 when a uri could not be
    looked at: it stays as it was.

    \b
      muster cost reconcile --database sqlite:////PATH/history.db --dry-run
    """
    from muster.telemetry.history.rows import Storage
    from muster.telemetry.history.upserts import tell

    with history(database) as (url, reader):
        every = [one for one in reader.storage() if one.bytes]
        known = [one for one in every if one.uri.startswith(under)]
        if every and not known:
            note(f"no uri begins with {under}; {there_are(under, {one.uri for one in every})}")
        if endpoint is not None:
            _demand_one_server(endpoint, {one.located[1] for one in known})
        now, failed, changed = datetime.now(timezone.utc), list[str](), list[tuple[Storage, Storage]]()
        for one in known:
            try:
                uri, server = one.located
                stored = _stored(uri, endpoint or server)
            except (MusterError, ValueError) as error:
                note(f"{one.uri}: {error}")
                failed.append(one.uri)
                continue
            if stored != one.bytes:
                changed.append((one, Storage(one.uri, now, one.job, stored)))
        if changed and not dry_run:
            tell(url, [fresh for _, fresh in changed])
    looked = len(known) - len(failed)
    if output is Output.JSON:
        found = [{"uri": fresh.uri, "job": fresh.job, "bytes": fresh.bytes, "was": was.bytes} for was, fresh in changed]
        print_json({"looked": looked, "changed": found, "failed": failed, "written": bool(changed) and not dry_run})
    else:
        if changed:
            cells = [(fresh.uri, amount(fresh.bytes), amount(was.bytes)) for was, fresh in changed]
            print_table(Console(markup=False, highlight=False), PlainTable(("URI", "TAKES", "TOOK"), cells))
        unseen = f", {len(failed)} could not be looked at" if failed else ""
        unwritten = ", nothing written" if dry_run else ""
        typer.echo(f"{counted(looked, 'uri')} looked at, {len(changed)} changed{unseen}{unwritten}")
    raise typer.Exit(1 if failed else 0)


def _demand_one_server(endpoint: str, servers: set[str]) -> None:
    if len(servers) > 1:
        told = ", ".join(server or "AWS's own" for server in sorted(servers))
        fail(
            f"--endpoint {endpoint} can't stand for all of {told}; leave it out, and each uri is looked at where its "
            "job said, or choose uris with --under"
        )


def _stored(uri: str, endpoint: str) -> int:
    """Bytes. `endpoint`: "" for who runs this to have said, or AWS's own. Raises MusterError, ValueError."""
    store = open_store(parse_uri(uri), endpoint)
    try:
        return sum(checkpoint.bytes for checkpoint in take(store, unfinished=False).committed)
    finally:
        store.close()
