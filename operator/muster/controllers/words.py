"""Tells jobs why they wait, and gangs why they are not larger: sparingly, for each word is a write of a status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from muster.api.names import ConditionType, EventReason
from muster.cluster.hindrances import hinders
from muster.cluster.status import Draft, below_wish, reason_of
from muster.controllers import planning, terms
from muster.controllers.decisions import Start
from muster.controllers.lifecycle.turn import Decision, Note
from muster.controllers.records import Record
from muster.controllers.sentences import Sentences
from muster.controllers.telling import Word, growth_of, hindered, in_window, noticeable
from muster.controllers.work import Worker, clock, utc_now
from muster.scheduling.plan import Plan, Waiting, WaitReason

REFRESH: Final = 10.0
"""Seconds between two words of one job of why it waits: its reasons may change places in every round."""

WORDS_PER_SECOND: Final = 25
"""Status writes of all waiting jobs together: first words, and others that a person would notice."""

WORDS_SHARE: Final = 0.25
"""Seconds of writing words in a second, at most: when the API server is slow to take a status, it is short of time, and
words must not compete with placements."""

WORDS_AT_LEAST: Final = 5
"""Status writes of all waiting jobs in a second that nothing takes from them, or a job among thousands would for hours
say nothing, or what is no longer so."""

EXPLAIN_EVERY: Final = 1.0
"""Seconds between two rounds that explain, at least; those between them only decide."""

GROWTH_REFRESH: Final = 60.0
"""Seconds between two looks at why a gang is not larger: nothing is to be done about it at once."""

FIRST_WORD_AFTER: Final = 0.5
"""Seconds that a new job waits for its start before it is told why it waits: one that starts soon spares the write."""


class Words:
    """Who has been told what, and how many more words may be written now.

    Attributes:
        explain_at: monotonic time of the next round that explains.
    """

    def __init__(
        self,
        worker: Worker,
        records: Mapping[str, Record],
        holders: Iterable[str],
        start: Start,
        later: Callable[[float], None],
    ) -> None:
        """
        Args:
            holders: UIDs of jobs that hold room.
            later: asks for a round at that monotonic time, at the latest, for a word that is held back till then.
        """
        self._worker = worker
        self._records = records
        self._holders = holders
        self._start = start
        self._later = later
        self._budget = float(WORDS_PER_SECOND)
        self._last_round = float("-inf")
        self.explain_at = float("-inf")

    def begin(self, now: float) -> None:
        """A round begins at `now` (monotonic): what was not written in the last ones may be written in it."""
        rate = min(WORDS_PER_SECOND, max(WORDS_AT_LEAST, WORDS_SHARE / self._worker.pace.seconds))
        self._budget = min(WORDS_PER_SECOND, self._budget + (now - self._last_round) * rate)
        self._last_round = now

    def tell(self, decided: Plan, sentences: Sentences, names: Mapping[str, str], typical: float) -> None:
        """Tell all whom the plan leaves waiting, or as they are.

        Args:
            names: `namespace/name` by UID.
            typical: what a start takes that nobody has measured, in seconds.
        """
        told: list[tuple[Record, Waiting]] = []
        for waiting in decided.waiting:
            record = self._records[waiting.uid]
            if record.task is not None or not record.plannable:
                continue  # what is being written tells more, and asks for a new plan
            if record.job.status.promise is not None and waiting.reason is WaitReason.PREEMPTING:
                continue  # its promise has named the victims and what they cost
            record.waiting = waiting
            told.append((record, waiting))
        for record, waiting in sorted(told, key=lambda one: bool(one[0].told)):  # first words first
            if self._budget < 1:
                self._later(self.explain_at)
                break
            more = sentences.elsewhere(record, waiting), sentences.ahead(waiting), sentences.retry_at(record, waiting)
            word = Word.of(waiting, sentences.of(record, waiting), *more)
            word = in_window(word, record.spec, terms.start_seconds(record.job.status, typical))
            self.waits(record, word, partial(_helped, decided, sentences, record, waiting))
        self._tell_growth(decided, names)

    def _tell_growth(self, decided: Plan, names: Mapping[str, str]) -> None:
        """Write why gangs that run below their wish are not larger, where that has changed since they were told."""
        if decided.stays is None:
            return
        now = clock()
        for uid in self._holders:
            record = self._records.get(uid)
            if record is None or record.task is not None or now - record.growth_seen_at < GROWTH_REFRESH:
                continue
            if not below_wish(record.job.status, record.spec.replicas):
                continue
            if self._budget < 1:
                self._later(self.explain_at)
                return
            record.growth_seen_at, stay = now, decided.stays(uid)
            growth = growth_of(stay, names) if stay is not None else None
            if growth is None or growth == record.job.status.growth:
                continue
            self._budget -= 1
            draft = Draft(record.job, utc_now())
            draft.set(growth=growth)
            self._start(record, self._worker.carry_out(record, Decision(status=draft.done())))

    def waits(self, record: Record, word: Word, helped: Callable[[Word], Word] | None = None) -> None:
        """Write why the job waits: its first word, and the first after an edit of it, at once; a change that a person
        would notice now and then.

        Args:
            helped: adds what would help, which is found for what is written only.
        """
        wall, now = utc_now(), clock()
        old = record.job.status
        avoided = tuple(item.node for item in old.avoided if item.until > wall)
        words = (word, avoided)
        # It may have run since it was told this, or a promise to it was broken: then its status says something else.
        fresh = reason_of(old, ConditionType.ADMITTED) != word.reason
        if record.told == words and old.queue is not None and not fresh:
            return  # ten thousand jobs wait: nothing dear is done for those of which nothing has changed
        same = not fresh and len(avoided) == len(old.avoided)
        if same and not noticeable(old.queue, word, wall.timestamp()):
            record.told = words
            return
        if old.queue is not None and now - record.told_at < REFRESH:
            self._later(record.told_at + REFRESH)
            return
        if self._budget < 1 or _new(record, now):
            self._later(max(self.explain_at, now + EXPLAIN_EVERY))
            return
        said = helped(word) if helped is not None else word
        status = planning.waiting_status(record.job, said, wall, defaults=record.defaults)
        if status == old:
            record.told = words
            return
        record.told, record.told_at = words, now
        # Who waits for its turn has no Event: the status says it, and each is one more write. Nor have the first words
        # of many that come at once.
        quiet = self._budget >= WORDS_PER_SECOND / 2
        told = fresh and (hinders(word.reason) or hindered(old)) and (old.queue is not None or quiet)
        notes = (Note(EventReason.QUEUED, word.message, warning=hinders(word.reason)),) if told else ()
        self._budget -= 1 + len(notes)
        self._start(record, self._worker.carry_out(record, Decision(status=status, notes=notes)))


def _helped(decided: Plan, sentences: Sentences, record: Record, waiting: Waiting, word: Word) -> Word:
    full = decided.helped(waiting)
    return word if full is waiting else word.helped(full, sentences.elsewhere(record, full))


def _new(record: Record, now: float) -> bool:
    """Whether the job may still start before a word to it would be read."""
    return record.seen_at is not None and now - record.seen_at < FIRST_WORD_AFTER
