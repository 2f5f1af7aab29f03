"""Who belongs to the gang, as the operator pushed it; and who has joined the barrier. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster_protocol.messages import Member, Membership


@dataclass(frozen=True)
class Refused:
    """An answer that refuses: an HTTP status and one sentence."""

    status: int
    text: str


class Roll:
    """The operator's word, and what it means for a pod that claims an index. Without a push everyone may come."""

    def __init__(self, generation: int, workers: int) -> None:
        self._generation = generation
        self._workers = workers
        self.held: Membership | None = None
        self._by_index: dict[int, Member] = {}
        self._uids: frozenset[str] = frozenset()
        self._given_up: set[str] = set()

    def push(self, pushed: Membership) -> Refused | None:
        """Takes a newer membership; the same again is no error."""
        if pushed.generation != self._generation:
            return Refused(409, f"this launcher is of generation {self._generation}, not {pushed.generation}")
        if self.held is not None and pushed.incarnation < self.held.incarnation:
            return Refused(409, f"incarnation {pushed.incarnation} is older than {self.held.incarnation}")
        self.held = pushed
        self._by_index = {member.index: member for member in pushed.members}
        self._uids = frozenset(member.pod_uid for member in pushed.members)
        return None

    def of(self, index: int) -> Member | None:
        return self._by_index.get(index)

    def give_up(self, pod_uid: str) -> None:
        """The pod is lost, so what it says from now on is not for this gang; until it is taken back."""
        self._given_up.add(pod_uid)

    def take_back(self, pod_uid: str) -> None:
        self._given_up.discard(pod_uid)

    def excludes(self, pod_uid: str) -> bool:
        return pod_uid in self._given_up or (bool(self._uids) and pod_uid not in self._uids)

    def incarnation(self) -> int:
        return max(1, self.held.incarnation) if self.held is not None else 1

    def check(self, member: Member) -> Refused | None:
        """May this pod be that index of the gang?"""
        if member.generation != self._generation:
            return Refused(409, f"index 0 is of generation {self._generation}, you are of {member.generation}")
        if not 0 <= member.index < self._workers:
            return Refused(400, f"index {member.index} is not one of 0 to {self._workers - 1}")
        return self.check_pod(member.index, member.pod_uid)

    def check_pod(self, index: int, pod_uid: str) -> Refused | None:
        named = self.of(index)
        if named is not None and named.pod_uid != pod_uid:
            return Refused(403, f"index {index} belongs to pod {named.pod_uid}, not to {pod_uid}")
        return None


@dataclass
class _Place:
    member: Member
    seen: float
    waiting: int = 0


@dataclass
class Barrier:
    """Who stands at the barrier. `patience` is how long a pod stays present after its last word, in seconds."""

    workers: int
    patience: float
    _places: dict[int, _Place] = field(default_factory=dict)

    def enter(self, member: Member, now: float) -> Refused | None:
        """Call `leave` when the pod's call ends, whatever its end."""
        place = self._places.get(member.index)
        if place is not None and place.member.pod_uid != member.pod_uid:
            known, present = place.member, place.waiting > 0
            if member.attempt < known.attempt or (member.attempt == known.attempt and present):
                return Refused(403, f"index {member.index} has joined as pod {known.pod_uid} already")
            place = None
        if place is None:
            place = self._places[member.index] = _Place(member, now)
        place.member, place.seen, place.waiting = member, now, place.waiting + 1
        return None

    def leave(self, member: Member, now: float, *, hung_up: bool) -> None:
        """`hung_up`: the connection broke; such a pod is absent until it calls again."""
        place = self._places.get(member.index)
        if place is None or place.member.pod_uid != member.pod_uid:
            return
        place.waiting -= 1
        place.seen = now
        if hung_up and place.waiting == 0:
            del self._places[member.index]

    def forget(self, index: int) -> None:
        """Its pod is lost."""
        self._places.pop(index, None)

    def keep(self, admitted: Roll) -> None:
        """Forgets whom the newest membership doesn't name."""
        for index, place in list(self._places.items()):
            if admitted.check(place.member) is not None:
                del self._places[index]

    def present(self, now: float) -> dict[int, Member]:
        return {
            index: place.member
            for index, place in self._places.items()
            if place.waiting > 0 or now - place.seen <= self.patience
        }

    @property
    def may_be_full(self) -> bool:
        """Cheap: is there a place for each index? Some of them may be absent by now."""
        return len(self._places) == self.workers

    def missing(self, now: float) -> list[int]:
        present = self.present(now)
        return [index for index in range(self.workers) if index not in present]
