"""`muster cost reconcile`: what checkpoints take in their buckets, told to the history. For who may read the buckets:
the operator may not, and what is deleted outside a run tells nobody."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Final

import typer

from muster.cli.checkpoint import open_store
from muster.cli.checkpoint_tables import amount
from muster.cli.printing import note
from muster_protocol.checkpoints.inventory import take
from muster_protocol.errors import MusterError
from muster_protocol.uris import parse_uri

HISTORY_URL: Final = "MUSTER_HISTORY_URL"
"""Where commands find the database's URL: as an argument its password stands in `ps` and in the shell's history."""


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
) -> None:
    """Look at what checkpoints take in their buckets now.

    The cost report counts it from now on. A run tells by itself what it saves and deletes. Run this after `muster
    checkpoint prune`, after deleting a run's checkpoints by hand or by a rule of the bucket, or once a day. Needs read
    access to the buckets, as the AWS tools do, and write access to the database. Exits with 1 when a uri could not be
    looked at: it stays as it was.

    \b
      muster cost reconcile --database sqlite:////PATH/history.db --dry-run
    """
    from sqlalchemy.exc import SQLAlchemyError

    from muster.telemetry.history.database import BadUrl, OldTables, parse, shown
    from muster.telemetry.history.reading import Reader
    from muster.telemetry.history.rows import Storage
    from muster.telemetry.history.upserts import tell

    try:
        url = parse(database)
        reader = Reader(url)
        try:
            reader.check()
            known = [one for one in reader.storage() if one.bytes and one.uri.startswith(under)]
        finally:
            reader.close()
        if endpoint is not None:
            _demand_one_server(endpoint, {one.located[1] for one in known})
        now, failed, found = datetime.now(timezone.utc), False, list[Storage]()
        for one in known:
            try:
                uri, server = one.located
                stored = _stored(uri, endpoint or server)
            except (MusterError, ValueError) as error:
                note(f"{one.uri}: {error}")
                failed = True
                continue
            if stored != one.bytes:
                typer.echo(f"{one.uri}: {amount(stored)}, was {amount(one.bytes)}")
                found.append(Storage(one.uri, now, one.job, stored))
        if found and not dry_run:
            tell(url, found)
    except BadUrl as error:
        note(f"--database: {error}")
        raise typer.Exit(2) from None
    except OldTables as error:
        note(f"cannot read the history: {error}")
        raise typer.Exit(2) from None
    except SQLAlchemyError as error:
        told = getattr(error, "orig", None) or error
        note(f"cannot read or write the history at {shown(url)}: {told}; check --database")
        raise typer.Exit(2) from None
    typer.echo(f"{len(known)} looked at, {len(found)} changed{', nothing written' if dry_run else ''}")
    raise typer.Exit(1 if failed else 0)


def _demand_one_server(endpoint: str, servers: set[str]) -> None:
    if len(servers) > 1:
        told = ", ".join(server or "AWS's own" for server in sorted(servers))
        note(f"--endpoint {endpoint} can't stand for all of {told}")
        note("leave it out, and each uri is looked at where its job said, or choose uris with --under")
        raise typer.Exit(2)


def _stored(uri: str, endpoint: str) -> int:
    """Bytes. `endpoint`: "" for who runs this to have said, or AWS's own. Raises MusterError, ValueError."""
    store = open_store(parse_uri(uri), endpoint)
    try:
        return sum(checkpoint.bytes for checkpoint in take(store, unfinished=False).committed)
    finally:
        store.close()
