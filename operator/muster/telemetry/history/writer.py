"""Writes the history in a thread of its own: what is put is kept in memory until it is committed.

Rows are upserts that leave newer ones alone, and of each key the newest is kept, so it does no harm when a commit was
done and its answer lost. While the database is away rows gather, up to a limit; beyond it rows of new keys are dropped,
and counted, and whatever exists is said again when it is back.

A new writer begins a term. With its first rows, in one transaction, it ends everything that was left open at the time
at which its predecessor last saw the cluster, marked as estimated; its first rows are a whole picture of what exists,
and open again what goes on. So it does when somebody has put a backup of the database in its place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from muster.telemetry.history import upserts
from muster.telemetry.history.database import Renew, engine_of, migrate, sentence, shown
from muster.telemetry.history.retention import AT_ONCE, expire
from muster.telemetry.history.rows import Row
from muster.telemetry.history.upserts import Key, Superseded, TakenBack, key_of

log = logging.getLogger(__name__)

MOST_ROWS: Final = 300_000
"""Rows that are kept while the database is away."""
FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 30.0
"""Seconds between two tries to reach the database: doubled each time."""
PATIENCE: Final = 60.0
"""Seconds after which a database that gives no answer at all, not even an error, is in trouble: its server hangs, or
somebody's open transaction has locked a table. The longest that libpq and SQLite take by themselves is half of it."""
SAY_EVERY: Final = 600.0
"""Seconds after which it is said again that the database is away."""
EXPIRE_EVERY: Final = 3600.0
"""Seconds between two looks for what is too old."""


_SILENT: Final = "it gives no answer: its server hangs, or a transaction that somebody left open has locked a table"


@dataclass(frozen=True)
class Health:
    """How the writer does, for metrics and for people.

    Attributes:
        trouble: why nothing can be written now; "" while all is well.
        waiting: rows that are not written yet.
        dropped: rows that found no room, or that the database refused, since the start.
        written: rows, since the start.
        written_at: monotonic time of the last commit; None before the first.
    """

    trouble: str = ""
    waiting: int = 0
    dropped: int = 0
    written: int = 0
    written_at: float | None = None


class Writer:
    """`start` it once; the others may be called at any time, and never wait for the database."""

    def __init__(
        self,
        url: URL,
        *,
        identity: str,
        retention: timedelta | None = None,
        most_rows: int = MOST_ROWS,
        first_wait: float = FIRST_WAIT,
        patience: float = PATIENCE,
        renew: Renew | None = None,
    ) -> None:
        """`retention`: what ended longer ago is removed; None: never. `renew`: see `engine_of`."""
        self._url, self._identity, self._retention, self._renew = url, identity, retention, renew
        self._most, self._first_wait, self._patience = most_rows, first_wait, patience
        self._lock = threading.Condition()
        self._rows: dict[Key, tuple[int, Row]] = {}
        self._number = 0
        self._wants_picture = True
        self._picture: datetime | None = None
        self._seen_at: datetime | None = None
        self._gap: datetime | None = None
        self._wake = self._closing = self._over = False
        self._health = Health()
        self._asked_at: float | None = None
        self._said_at = float("-inf")
        # The thread's own:
        self._migrated = False
        self._term = 0
        self._told: datetime | None = None
        self._expired_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    @property
    def health(self) -> Health:
        with self._lock:
            return replace(self._health, waiting=len(self._rows))

    @property
    def wants_picture(self) -> bool:
        """Rows of everything that exists are to be put, and then `picture` is to be called."""
        with self._lock:
            return self._wants_picture

    def start(self) -> None:
        self._thread.start()

    def put(self, rows: Iterable[Row]) -> None:
        """Take rows; one takes the place of an earlier one with its key."""
        with self._lock:
            if self._over:
                return  # nobody would write them any more
            for row in rows:
                key = key_of(row)
                if len(self._rows) >= self._most and key not in self._rows and not self._wants_picture:
                    self._gap = self._gap or self._seen_at
                    self._health = replace(self._health, dropped=self._health.dropped + 1)
                    continue
                self._number += 1
                self._rows[key] = self._number, row

    def picture(self, taken_at: datetime) -> None:
        """Everything that exists has been put, as it was at `taken_at`."""
        with self._lock:
            self._wants_picture, self._picture = False, taken_at
        self.seen(taken_at)

    def seen(self, moment: datetime) -> None:
        """What was put until now is how the cluster was at `moment`. Has it written."""
        with self._lock:
            self._seen_at, self._wake = moment, True
            self._lock.notify()
            silent = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        if silent > self._patience:  # the thread waits, and can't tell
            self._away(_SILENT)

    def close(self, timeout: float = 3.0) -> None:
        """Write what is left, in `timeout` s at most."""
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        engine, wait = engine_of(self._url, writes=True, renew=self._renew), self._first_wait
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._wake or self._closing)
                self._wake, closing = False, self._closing
            try:
                self._ask(engine)
                wait = self._first_wait
            except Superseded as error:
                log.error("history: nothing is written any more: %s", error)
                with self._lock:
                    self._health, self._over = replace(self._health, trouble=str(error)), True
                    self._rows.clear()
                break
            except TakenBack as error:
                log.warning("history: somebody put an older database in place: %s; what exists is said again", error)
                with self._lock:
                    self._wants_picture = True
            except Exception as error:  # noqa: BLE001 - whatever a driver raises, what was put is tried again
                self._migrated = False  # it may come back without its tables
                self._away(sentence(error), None if isinstance(error, DBAPIError) else error)
                with self._lock:
                    self._lock.wait_for(lambda: self._closing, wait)
                    self._wake = True
                wait = min(2 * wait, LONGEST_WAIT)
            if closing:
                break
        engine.dispose()

    def _ask(self, engine: Engine) -> None:
        """All that is wanted of the database now."""
        with self._lock:
            self._asked_at = time.monotonic()
        try:
            self._flush(engine)
            self._expire(engine)
        finally:
            with self._lock:
                self._asked_at = None

    def _flush(self, engine: Engine) -> None:
        if not self._migrated:
            with engine.begin() as connection:
                migrate(connection)
            self._migrated = True
        with self._lock:
            if self._wants_picture or self._seen_at is None:
                return
            rows, picture, seen_at, gap = dict(self._rows), self._picture, self._seen_at, self._gap
        with engine.begin() as connection:
            if picture is not None:
                term = upserts.take_over(connection, self._identity, picture, seen_at, gap)
            else:
                term = self._term
                upserts.beat(connection, term, seen_at, self._told or seen_at)
            refused = upserts.write(connection, term, list(rows.values()))
        self._term, self._told = term, seen_at
        self._written(rows, picture, refused)

    def _written(self, rows: dict[Key, tuple[int, Row]], picture: datetime | None, refused: int) -> None:
        with self._lock:
            for key, item in rows.items():
                if self._rows.get(key) is item:
                    del self._rows[key]
            if picture is not None:
                self._picture = self._gap = None
            elif self._gap is not None:
                self._wants_picture = True
            was = self._health
            self._health = replace(
                was,
                trouble="",
                dropped=was.dropped + refused,
                written=was.written + len(rows) - refused,
                written_at=time.monotonic(),
            )
        if was.trouble:
            log.info("history: the database is back, and has the %d rows that waited", len(rows))

    def _expire(self, engine: Engine) -> None:
        if self._retention is None or time.monotonic() - self._expired_at < EXPIRE_EVERY:
            return
        try:
            before = datetime.now(timezone.utc) - self._retention
        except OverflowError:
            return  # so long ago the calendar has no day, and nothing ended
        with engine.begin() as connection:
            more = expire(connection, before) == AT_ONCE
        if not more:
            self._expired_at = time.monotonic()

    def _away(self, trouble: str, unknown: Exception | None = None) -> None:
        """`unknown`: an error that no driver tells of its database."""
        now = time.monotonic()
        with self._lock:
            known, self._health = self._health.trouble, replace(self._health, trouble=trouble)
            if known == trouble and now - self._said_at <= SAY_EVERY:
                return
            self._said_at = now
        where = shown(self._url)
        log.warning("history: cannot write to the database, rows are kept: %s: %s", where, trouble, exc_info=unknown)
