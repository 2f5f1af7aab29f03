"""What was, and what it cost: from the history's database, to whoever may list the same jobs with kubectl.

A job whose object is gone is shown to those who may list jobs in its namespace today. What was idle is told to those
who may list all jobs and the nodes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from muster.server.identity import Kept, Reviewer, Right, User
from muster.server.listing import BadCursor, behind, cursor_of, question_of
from muster.server.past_models import CostForm, CostQuery, PastJob, PastJobDetail, PastPage, PastQuery
from muster.server.problems import Problem, bad_parameter, unavailable
from muster.sizing.prices import Catalogue
from muster.telemetry.cost import formats
from muster.telemetry.cost.chargeback import UnknownGroup, notes, report
from muster.telemetry.cost.ledger import ledger
from muster.telemetry.cost.page import to_html
from muster.telemetry.cost.periods import month, month_of
from muster.telemetry.history.database import sentence
from muster.telemetry.history.reading import Cursor, Filter, Reader

LIST: Final = Right("list", "trainingjobs")
NODES: Final = Right("list", "nodes", group="")
REPORT_SECONDS: Final = 60.0
"""For which a report is kept; the history itself is some seconds behind."""
REPORTS: Final = 16
THREADS: Final = 4
"""That ask the database at once; further questions wait for one. They are the history's own: a database that hangs
keeps them, and queues and GPUs are added up in others."""

T = TypeVar("T")


@dataclass
class Past:
    """Attributes:
    reader: of the history.
    prices: those that hold for reports.
    """

    reader: Reader
    prices: Catalogue
    reports: Kept[tuple[Any, ...], str] = field(default_factory=lambda: Kept(most=REPORTS))
    one_report: asyncio.Lock = field(default_factory=asyncio.Lock)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "past"))

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.reader.close()

    async def jobs(self, reviewer: Reviewer, user: User, query: PastQuery) -> PastPage:
        visible = await self._visible(reviewer, user, query.namespace)
        question = question_of(**query.model_dump(exclude={"limit", "cursor"}))
        wanted = Filter(
            tuple(sorted(visible)) if visible is not None else None,
            **query.model_dump(include={"name", "queue", "user", "project", "begins", "ends", "gone"}),
            phase=query.phase.value if query.phase else None,
        )
        after = _cursor(query.cursor, question) if query.cursor else None
        page = await self._read(self.reader.jobs, wanted, after=after, limit=query.limit)
        following = cursor_of((page.next.submitted_at.isoformat(), page.next.uid), question) if page.next else ""
        return PastPage(items=[PastJob.model_validate(one) for one in page.jobs], next=following)

    async def job(self, reviewer: Reviewer, user: User, uid: str) -> PastJobDetail:
        found = await self._read(self.reader.job, uid)
        if found is None or not await reviewer.allows(
            user, Right("get", "trainingjobs", found.job.namespace, found.job.name)
        ):
            raise Problem(404, f"the history has no job with the UID {uid!r} that you may see")
        # It may have a hundred thousand rows, and the others' answers wait while this thread makes them.
        return await self._read(PastJobDetail.model_validate, found)

    async def cost(self, reviewer: Reviewer, user: User, query: CostQuery) -> str:
        """The report as text in the form that was asked for."""
        visible = await self._visible(reviewer, user, query.namespace)
        idle = visible is None and await reviewer.allows(user, NODES)
        asked_for = query.month or month_of(datetime.now(timezone.utc))

        async def work() -> tuple[str, float]:
            async with self.one_report:  # a large one takes a processor for seconds
                return await self._read(self._report, asked_for, query, visible, idle), REPORT_SECONDS

        return await self.reports.get((asked_for, query.by, query.format, query.cluster, visible, idle), work)

    def _report(self, asked_for: str, query: CostQuery, visible: frozenset[str] | None, idle: bool) -> str:
        try:
            begins, ends = month(asked_for)
        except ValueError as error:
            raise bad_parameter("month", str(error)) from error
        reader = self.reader
        ends = max(begins, min(ends, reader.seen_at() or begins))
        jobs = reader.facts(begins, ends, visible)
        uids = {one.uid for one in jobs}  # the history is written meanwhile
        book = ledger(
            self.prices,
            begins,
            ends,
            [row for row in reader.intervals(begins, ends, visible) if row.job in uids],
            parts=[row for row in reader.parts(begins, ends, visible) if row.job in uids],
            pools=reader.pools(begins, ends) if idle else (),
            stored=[row for row in reader.stored(begins, ends) if row.job in uids],
        )
        if query.format is CostForm.FOCUS:
            account = formats.Account.named(query.cluster, self.prices.region)
            return formats.to_focus(book, jobs, account)
        page = query.format is CostForm.HTML
        try:
            table = report(book, jobs, [name.strip() for name in query.by.split(",")], places=2 if page else 6)
        except UnknownGroup as error:
            raise bad_parameter("by", str(error)) from error
        if page:
            return to_html(table, list(notes(table)), cluster=query.cluster)
        return formats.to_csv(table) if query.format is CostForm.CSV else formats.to_json(table)

    async def _visible(self, reviewer: Reviewer, user: User, namespace: str) -> frozenset[str] | None:
        """Namespaces whose jobs the user may list; None: all. Raises Problem 403 where there are none."""
        if namespace:
            await reviewer.demand(user, Right(LIST.verb, LIST.resource, namespace))
            return frozenset({namespace})
        if await reviewer.allows(user, LIST):
            return None
        names = await self._read(self.reader.namespaces)
        return await reviewer.namespaces(user, LIST, lambda: names)

    async def _read(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        try:
            asked = functools.partial(work, *arguments, **options)
            return await asyncio.get_running_loop().run_in_executor(self.threads, asked)
        except SQLAlchemyError as error:
            raise unavailable(f"the history's database gives no answer: {sentence(error)}", seconds=10) from error


def _cursor(text: str, question: str) -> Cursor:
    try:
        moment, uid = behind(text, question)
        return Cursor(datetime.fromisoformat(moment).astimezone(timezone.utc), str(uid).replace("\0", ""))
    except (BadCursor, ValueError, TypeError, OverflowError) as error:
        told = str(error) if isinstance(error, BadCursor) else "it is no cursor of this API"
        raise bad_parameter("cursor", told) from error
