"""The stores that `muster checkpoint` looks into, opened by uri, and the words for what goes wrong there."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import typer

from muster.cli.printing import fail, note
from muster_protocol.checkpoints.chain import Found, read_manifest
from muster_protocol.checkpoints.commit import TOOL
from muster_protocol.checkpoints.file_store import FileStore
from muster_protocol.checkpoints.holds import held, refuse_if_doomed
from muster_protocol.checkpoints.inventory import Checkpoint, Inventory, choose, meant, take
from muster_protocol.checkpoints.store import Store, StreamingStore
from muster_protocol.errors import CorruptCheckpointError, MusterError, StorageError
from muster_protocol.storage_errors import BY_HAND, Hints
from muster_protocol.uris import CheckpointUri, parse_uri, parse_uri_at_step, parse_uri_of_run


def open_store(uri: CheckpointUri, endpoint: str | None, hints: Hints = BY_HAND) -> StreamingStore:
    """To be closed by whoever asks. `endpoint`: URL of the S3 server; None for AWS's own."""
    if uri.scheme == "file":
        return FileStore(uri)
    from muster_protocol.checkpoints.s3 import S3Store

    return S3Store(uri, endpoint or "", hints)


@contextlib.contextmanager
def opened(uri: str, endpoint: str | None, hints: Hints = BY_HAND) -> Iterator[StreamingStore]:
    """Until the block ends. Raises MusterError, ValueError."""
    store = open_store(parse_uri(uri), endpoint, hints)
    try:
        yield store
    finally:
        store.close()


def of_run(uri: str, endpoint: str | None) -> contextlib.AbstractContextManager[StreamingStore]:
    """For what takes a whole run, and no step of it."""
    return opened(str(parse_uri_of_run(uri)), endpoint)


def of_target(uri: str, own: str | None, endpoint: str | None) -> contextlib.AbstractContextManager[StreamingStore]:
    """The run that is copied into. `own`: URL of its S3 server; None where it is the source's, `endpoint`."""
    hints = replace(BY_HAND, endpoint="--target-endpoint") if own else BY_HAND
    return opened(str(parse_uri_of_run(uri)), own or endpoint, hints)


@contextlib.contextmanager
def located(uri: str, endpoint: str | None) -> Iterator[tuple[Store, Inventory, int | None]]:
    """The store of a `URI@STEP`, what lies there, and the step that it names."""
    parsed, step = parse_uri_at_step(uri)
    with opened(str(parsed), endpoint) as store:
        yield store, take(store, unfinished=False), step


@contextlib.contextmanager
def chosen(uri: str, endpoint: str | None) -> Iterator[tuple[Store, Inventory, Checkpoint]]:
    """The checkpoint that a `URI@STEP` names, else the committed one."""
    with located(uri, endpoint) as (store, inventory, step):
        checkpoint = choose(inventory, step)
        if step is None and inventory.newest_lost is not None:
            note(f"{inventory.newest_lost.reason}; step {checkpoint.step} is taken, the newest that can be read")
        yield store, inventory, checkpoint


def manifest_of(store: Store, checkpoint: Checkpoint) -> Found:
    return read_manifest(store, checkpoint.key, checkpoint.sha256)


@contextlib.contextmanager
def reading(store: Store, checkpoint: Checkpoint, what: str, warn: Callable[[str], None] = note) -> Iterator[None]:
    """No prune takes it away until the block ends. `what` it is read for; `warn` hears why one may all the same, and
    what the block misses is told as that then."""
    with held(store, checkpoint.key, who(what), warn):
        try:
            yield
        except CorruptCheckpointError:
            refuse_if_doomed(store, checkpoint.key)
            raise


def who(what: str) -> str:
    """As which a tool holds or claims something."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = f"user {os.getuid()}"
    return f"{TOOL}{what} by {user} on {socket.gethostname()}"


def misspelt(uri: CheckpointUri, endpoint: str | None) -> str:
    """The uri of the run beside a place without any, of whose name that is a likely misspelling; "" where none is."""
    above, _, name = uri.prefix.rpartition("/")
    parent = replace(uri, prefix=above)
    if not name or (uri.scheme == "file" and not above):
        return ""
    try:
        with opened(str(parent), endpoint) as store:
            near = meant(store, name)
    except StorageError:
        return ""  # who may read below a prefix alone is told no more
    return f"{parent}/{near}" if near is not None else ""


def uri_of(place: str) -> str:
    """Of a folder or a uri. A name is no URL here: a space in it is a space."""
    if not place:  # a variable that isn't set, and no word for where one is
        fail("the folder is empty; name one, or write . for this one")
    return place if "://" in place else f"file://{Path(place).absolute()}"


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Errors that a user can meet become sentences."""
    try:
        yield
    except (MusterError, ValueError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
