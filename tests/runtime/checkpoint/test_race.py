"""Two gangs that race for one prefix on a real S3 server, after a proof of that server.

A thousand rounds of the proof, and a hundred of the race; with MUSTER_THOROUGH=1 a thousand of that, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made import MadeRun, is_whole

from muster_protocol.checkpoints.chain import Found, candidates
from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.s3 import S3Store
from muster_protocol.errors import StaleEpochError, StorageError
from muster_protocol.uris import parse_uri

if TYPE_CHECKING:
    from conftest import S3Server

PROOF_ROUNDS = 1000
ROUNDS = 1000 if os.environ.get("MUSTER_THOROUGH") else 100
WRITERS = 8
PATIENCE = 60.0


@pytest.fixture
def stores(s3_environment: S3Server, tmp_path: Path) -> Iterator[list[S3Store]]:
    made = [S3Store(parse_uri(f"s3://models/{tmp_path.name}")) for _ in range(2)]
    yield made
    for store in made:
        store.close()


def test_the_server_itself_has_one_winner_each_round(stores: list[S3Store]) -> None:
    """Eight conditional PUTs at once, of which one alone may be done."""
    etag: str | None = None
    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(PROOF_ROUNDS):
            start = threading.Barrier(WRITERS, timeout=PATIENCE)

            def write(who: int, number: int = number, etag: str | None = etag) -> str | None:
                start.wait()  # noqa: B023 - all of this round's threads are over before the next
                try:
                    return stores[who % 2].put_if("word", f"{number} {who}".encode(), etag)
                except StorageError as error:
                    if error.kind not in ("PreconditionFailed", "Busy"):
                        raise
                    return None

            wins = [(who, tag) for who, tag in enumerate(pool.map(write, range(WRITERS))) if tag]
            assert len(wins) == 1, f"round {number}: {wins}"
            body = stores[0].get("word")
            assert body is not None
            assert (body.content, body.etag) == (f"{number} {wins[0][0]}".encode(), wins[0][1])
            etag = body.etag


@pytest.mark.timeout(1200)
def test_two_gangs_race_for_one_prefix(stores: list[S3Store]) -> None:
    """In each round both claim the run, go on from what is committed then, save, and commit."""
    rounds = threading.Barrier(2, timeout=PATIENCE)

    def gang(who: int) -> list[str]:
        made, committed = MadeRun(stores[who]), []
        for number in range(ROUNDS):
            rounds.wait()
            made.start()
            try:
                committed.append(made.save(2 * number + who))
            except StaleEpochError:
                continue  # the other has claimed since
        return committed

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(gang, range(2)))
    claim = read_latest(stores[0])
    assert claim is not None
    assert claim.latest.epoch == 2 * ROUNDS, "each claim took an epoch of its own"
    history = []
    for found in candidates(stores[0], claim.latest):
        assert isinstance(found, Found), found.reason
        assert is_whole(stores[0], found)
        history.append(found)
    assert sorted(found.key for found in history) == sorted(told[0] + told[1]), "what was told, and nothing else"
    epochs = [found.manifest.epoch for found in history]
    assert epochs == sorted(set(epochs), reverse=True), "one history, newest first"
    assert ROUNDS <= len(history) <= 2 * ROUNDS, "the later claim of a round always commits"
