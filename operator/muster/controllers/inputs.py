"""From the records to the planner's inputs: jobs that wait, that hold room, and that have room promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from muster.api.names import GPU_RESOURCE
from muster.api.placement import Placement, Promise, parse_indexes, spares_by_index
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster import pods as pod_objects
from muster.cluster.eligibility import Matcher, NodeFilter, filter_of_pod
from muster.cluster.gpus import BY_SURENESS, capacity_of, flavour_of
from muster.cluster.jobs import NO_ACCELERATOR, JobInput, RunInput
from muster.cluster.pods import PodSettings
from muster.cluster.status import finished, goes_on
from muster.cluster.views import NodeView, PodView
from muster.controllers import admission, devices, flavours, planning, terms
from muster.controllers.cache import Cache, Owner
from muster.controllers.claims import Claims
from muster.controllers.lifecycle import preemption
from muster.controllers.lifecycle.replacement import shrinks_at
from muster.controllers.lifecycle.turn import TERMINAL
from muster.controllers.records import Record, Requests
from muster.controllers.starts import Starts
from muster.scheduling.snapshot import FOREVER
from muster.telling.usage import way_up

Flavours = Counter[tuple[str, str]]

MAX_LABEL: Final = 63
"""Characters of a label's value, of which a GPU type is one."""


class Inputs:
    """Makes `JobInput`s; what is dear is made anew only when something about the job has changed.

    Attributes:
        starts: what starts take.
    """

    def __init__(
        self,
        cache: Cache,
        settings: PodSettings,
        claims: Claims,
        prices: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`prices`: money for an hour of one GPU, by flavour like `H100/on-demand`."""
        self.starts = Starts()
        self._cache = cache
        self._settings = settings
        self._claims = claims
        self._prices = prices
        self._looked: tuple[object, ...] = ()
        self._counts: Flavours = Counter()
        self._seen: list[object] = []
        self._of_flavour: dict[str, list[NodeView]] = {}
        self._allowed: dict[NodeFilter, frozenset[str]] = {}
        self._rounds = 0

    def pending(self, record: Record, world: admission.World, now: datetime, pods: Sequence[PodView] = ()) -> JobInput:
        """A job that the planner may place, or one that has nodes already: then its kind of node is theirs."""
        drawn_on = self._drawn_on(record, pods)
        steady = self._steady(record, drawn_on)
        if record.planned is not None and steady == record.steady:
            return record.planned[1]
        counts, quotas = self._counts_for(record), _quota_types(record.spec.queue, world)
        choices = flavours.choose_flavours(record.spec, counts, quotas, self._prices)
        renamed = record.placement is not None and flavours.renamed(record.spec, drawn_on, self._counts)
        choices = flavours.standing_choices(record.spec, choices, drawn_on, renamed=renamed)
        beyond = self._beyond(record, drawn_on or choices[0].flavour, renamed=renamed)
        priority = world.priorities.get(record.spec.priority_class)
        if priority is None:  # it names none, or one that is not there: then what it had counts
            priority = (record.job.status.priority or 0) if record.spec.priority_class else 0
        avoided = tuple(item.node for item in record.job.status.avoided if item.until > now)
        since = planning.submitted(record.job)
        levels = tuple(world.levels)
        judgement = record.judgement
        start = terms.start_seconds(record.job.status, self.starts.typical)
        if record.placement:
            # The others speak of a run that would start now, and change all the time while one is under way.
            times = terms.bounds_of_restart(record.spec, now, start)
            if record.edit.message:  # it could not start again: it is neither moved nor resized
                times = terms.NEVER_AGAIN
        else:
            times = terms.bounds(record.spec, record.job.status, now, start)
        length = terms.length(record.spec, record.job.status)
        saves = planning.saves(record.spec, record.job.status)
        had = record.placement or record.promise
        told = (record.promise, planning.base_of(had), record.job.status.fixed_size, drawn_on, saves)
        key = (judgement, record.spec, choices, beyond, priority, levels, avoided, since, told, times, start, length)
        if record.planned is None or record.planned[0] != key:
            requests, node_filter = self._demands(record)
            made = planning.pending_input(
                record.job,
                record.spec,
                request=dict(requests),
                node_filter=node_filter,
                choices=choices,
                beyond=beyond,
                had=had,
                priority=priority,
                levels=levels,
                times=times,
                avoided=avoided,
                promised=preemption.nodes_of(record.promise) if record.promise else (),
                promised_base=planning.base_of(record.promise),
            )
            own = record.uid if goes_on(record.job.status) else ""
            yields = record.promise is not None and record.promise.yields
            run = RunInput(restart=start, grace=float(record.spec.grace), beneficiary=own, yields=yields)
            made = replace(made, run=run, flavour=drawn_on or made.flavour)
            record.planned = (key, made)
        lasting = times is terms.NO_BOUNDS and not record.job.status.avoided
        record.steady = steady if lasting else None
        return record.planned[1]

    def look(self, world: admission.World, nodes: Sequence[NodeView]) -> bool:
        """Begin a round. False: what was made of a job in an earlier one still holds."""
        found = self._allowed
        demands: list[object] = [(node.name, node.labels, node.taints) for node in nodes]
        if demands != self._seen:
            self._seen, self._of_flavour = demands, flavours.by_flavour(nodes)
            found = {node_filter: self._flavours_for(node_filter) for node_filter in self._allowed}
            self._counts = flavours.flavour_counts(nodes)
        queues = {name: (queue.metadata.uid, queue.metadata.generation) for name, queue in world.queues.items()}
        looked = (dict(world.priorities), tuple(world.levels), self._counts, queues, self.starts.typical)
        if looked != self._looked or found != self._allowed:
            self._looked, self._allowed, self._rounds = looked, {}, self._rounds + 1
            return True
        return False

    def _counts_for(self, record: Record) -> Flavours:
        """Nodes by flavour and product: of those flavours that have a node which the job's labels and tolerations let
        it run on, if any has. Who names no GPU type, but a label of its nodes, means those."""
        judgement, counts = record.judgement, self._counts
        if judgement is None or not judgement.requests or not record.spec.gpus_per_worker:
            return counts
        node_filter = judgement.node_filter
        if node_filter not in self._allowed:
            self._allowed[node_filter] = self._flavours_for(node_filter)
        allowed = self._allowed[node_filter]
        left = Counter({key: count for key, count in counts.items() if key[0] in allowed})
        return left if flavours.suited_by(record.spec, left) else counts

    def _flavours_for(self, node_filter: NodeFilter) -> frozenset[str]:
        matcher = Matcher(node_filter)
        return frozenset(
            flavour for flavour, nodes in self._of_flavour.items() if any(matcher.allows(node) for node in nodes)
        )

    def _steady(self, record: Record, drawn_on: str) -> tuple[object, ...]:
        """What the input of a job is made from of which time alone changes nothing. Ten thousand are looked at in every
        round; that these are the same objects as before is known at once."""
        job = (record.job, record.spec, record.judgement, record.edit, record.promise)
        return self._rounds, *job, drawn_on, self._kind_beyond(record)

    def standing(self, record: Record, world: admission.World, now: datetime) -> JobInput | None:
        """A job's hold, from its placement's first writing until its last pod is gone; or what is promised to it."""
        pods = self.living(record.owner)
        holds = pods or record.made or (record.placement is not None and not record.leaves_for_good)
        if not holds and (record.promise is None or record.leaves_for_good or finished(record.job.status)):
            return None
        made = self.pending(record, world, now, pods)
        return self._holding(record, made, pods, now) if holds else made

    def _holding(self, record: Record, made: JobInput, pods: list[PodView], now: datetime) -> JobInput:
        placement, status = record.placement, record.job.status
        placed = _places(placement, record.spec.spares) if placement else ()
        generation = placement.generation if placement else 0
        claim = self._claims.of(record.uid, generation)
        over = record.leaves_for_good or finished(status)
        leaving = placement is None or record.leaving or over or status.stop is not None or claim is not None
        beneficiary = claim.beneficiary if claim else status.stop.beneficiary if status.stop else ""
        onward = preemption.nodes_of(claim.victim) if claim else ()  # its own promise is written with its stop
        promised = (made.promised or onward) if not over else ()
        base = planning.base_of(placement)
        shrinks = shrinks_at(status, record.spec)
        return replace(
            made,
            queue=(placement.queue if placement else "") or next((pod.queue for pod in pods if pod.queue), made.queue),
            workers=placement.workers if placement else made.workers,
            request=made.request if record.judgement or not pods else dict(pods[0].requests),
            placed=placed,
            promised=promised,
            generation=generation,
            attempts=tuple((item.index, item.attempt) for item in placement.attempts) if placement else (),
            lost=unmade(record, self._cache.pods_of(record.owner)),
            shrinks=shrinks.timestamp() if shrinks is not None else FOREVER,
            holding=True,
            reserving=bool(record.made) or (status.stop is None and not over),
            base=base,
            promised_base=made.promised_base if made.promised else min(base, len(promised)),
            run=replace(
                run_of(record, now, self.starts.typical),
                leaving=leaving,
                beneficiary=record.uid if promised else beneficiary,
            ),
        )

    def _drawn_on(self, record: Record, pods: Sequence[PodView]) -> str:
        """Whose quota a job draws on that has nodes, or is promised some: that of the first which tells its GPU type.
        "" for others, and without GPUs. While the labels of all are gone (GPU feature discovery takes them away when it
        is installed anew) it is what was written down with them: drawing on anything else the gang could be beyond its
        queue's quota, and be stopped for that."""
        had, each = record.placement or record.promise, record.spec.gpus_per_worker
        if not (record.placement.gpus(each) if record.placement is not None else each):
            return NO_ACCELERATOR
        nodes = _nodes_of_base(had) if had else (pod.node for pod in pods)
        return self._flavour_there(nodes) or (_flavour_written(had) if had else NO_ACCELERATOR)

    def _flavour_there(self, nodes: Iterable[str]) -> str:
        """The flavour of the first of these that tells its GPU type; "" where none does."""
        found = (flavour_of(node.labels) for node in map(self._cache.node, nodes) if node is not None)
        return next(filter(None, found), NO_ACCELERATOR)

    def _beyond(self, record: Record, base: str, *, renamed: bool) -> flavours.Choice | None:
        """The nodes that a gang with a safe base takes for its other workers: with the same GPU as the base's, whose
        flavour is `base`. While it has some, they are of the kind that those nodes are of, whatever its spec says by
        now."""
        there, kind, flavour = self._kind_beyond(record)
        kind = kind or record.spec.beyond
        if not kind:  # its nodes are gone, and so is the wish: they are counted where the base is
            return flavours.Choice(base, ()) if there else None
        if not base:
            return flavours.Choice(NO_ACCELERATOR, (kind,))
        return flavours.Choice(flavour or f"{base.partition('/')[0]}/{kind}", (kind,), renamed)

    def _kind_beyond(self, record: Record) -> tuple[bool, str, str]:
        """Whether a gang has workers beyond its base, and the kind and flavour of their nodes by their present labels:
        others may have changed at the same time, so that there are as many of each flavour as before."""
        had = record.placement or record.promise
        if had is None or not (there := _nodes_beyond(had)):  # nearly all
            return False, "", ""
        node = next((node for node in map(self._cache.node, there) if node is not None), None)
        return True, capacity_of(node.labels) if node is not None else "", self._flavour_there(there)

    def no_priority_class(self, record: Record) -> str:
        """What is wrong with the PriorityClass that the job names, or ""."""
        name = record.spec.priority_class
        if not name or self._cache.priority(name) is not None:
            return ""
        return admission.no_priority_class(name, self._cache.priorities(), self._settings.priority_class)

    def suits(self, record: Record, name: str, now: datetime) -> bool:
        """Whether a pod of the job could be bound to that node now, if there is room."""
        node = self._cache.node(name)
        if node is None or not node.takes_pods:
            return False
        avoided = any(item.node == name and item.until > now for item in record.job.status.avoided)
        return not avoided and Matcher(self._demands(record)[1]).allows(node)

    def orphans(self, records: Mapping[str, Record], world: admission.World) -> Iterable[JobInput]:
        """Pods of jobs that nobody knows: deleted while no operator ran, or unreadable. They hold their queue's quota
        until they are gone, if it is open to them: labels and owners are anyone's to write."""
        counted = set[str]()
        for owner in self._cache.owners():
            namespace, uid = owner
            if uid in records or uid in counted:
                continue
            pods = [pod for pod in self.living(owner) if pod.queue]
            if not pods or not admission.open_to(world.queues.get(pods[0].queue), namespace, world):
                continue
            counted.add(uid)
            node = next((found for found in (self._cache.node(pod.node) for pod in pods) if found is not None), None)
            request = dict(pods[0].requests)
            yield JobInput(
                uid=uid,
                namespace=namespace,
                queue=pods[0].queue,
                workers=len(pods),
                request=request,
                flavour=flavour_of(node.labels) if node and GPU_RESOURCE in request else NO_ACCELERATOR,
                generation=max(pod.generation for pod in pods),
                holding=True,
                reserving=False,
                run=RunInput(leaving=True),
            )

    def living(self, owner: Owner) -> list[PodView]:
        """The job's pods that hold its quota. One that was deleted on a lost node does not: its kubelet can't say that
        it is gone, for days perhaps. It still counts against its node."""
        pods = [pod for pod in self._cache.pods_of(owner) if pod.phase not in TERMINAL]
        lost = self._cache.lost_nodes(pod.node for pod in pods if pod.terminating)
        return [pod for pod in pods if not (pod.terminating and pod.node in lost)]

    def _demands(self, record: Record) -> tuple[Requests, NodeFilter]:
        """One worker's request and demands on its node: as rehearsed, or else as its template says."""
        if record.judgement is not None and record.judgement.requests:
            return record.judgement.requests, record.judgement.node_filter
        try:
            template = pod_objects.template(record.identity, record.spec, self._settings)
            metadata = {**template["metadata"], "namespace": record.identity.namespace}
            view = PodView.from_raw({"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata})
        except ValueError:  # TemplateRefused, or a quantity that is none
            return (), NodeFilter()  # its pods, if there are any, tell
        return view.requests, filter_of_pod(template["spec"])


def _flavour_written(had: Placement | Promise) -> str:
    """Nothing for one that no node can have: another version's kind of capacity, or a hand's. What queues use is told
    by kind, and could not be told of anybody."""
    gpu_type, _, kind = had.flavour.partition("/")
    return had.flavour if kind in BY_SURENESS and len(gpu_type) <= MAX_LABEL else NO_ACCELERATOR


def _nodes_of_base(had: Placement | Promise) -> Iterator[str]:
    """In the order of their first worker."""
    base = had.base  # of most gangs it is all of them, and indexes are dear to read
    return (item.node for item in had.nodes if base is None or parse_indexes(item.indexes)[0] < base)


def _nodes_beyond(had: Placement | Promise) -> list[str]:
    if had.base is None:
        return []
    return [item.node for item in had.nodes if parse_indexes(item.indexes)[-1] >= had.base]


def _quota_types(queue: str, world: admission.World) -> list[list[str]]:
    """GPU types as the quotas of a queue name them, and those of each queue above it."""
    return [[quota.gpu_type for quota in each.spec.quotas or ()] for each in way_up(queue, world.queues)]


def unmade(record: Record, pods: Iterable[PodView]) -> tuple[int, ...]:
    """Workers of a running gang that are replaced and have no new pod yet, so that they may get another node.

    None while it isn't known what became of a request for one.
    """
    placement, identity = record.placement, record.identity
    if placement is None or record.errors or record.job.status.stop is not None:
        return ()
    there = {pod.name for pod in pods} | set(record.made)
    names = {
        index: pod_objects.pod_name(identity.name, placement.generation, index, placement.attempt_of(index))
        for index in placement.replaced
    }
    return tuple(index for index, name in names.items() if name not in there)


def run_of(record: Record, now: datetime, typical: float) -> RunInput:
    """What is known of the placement, from the job's own telemetry where there is any. `typical`: what a start takes
    of which nobody knows.

    What a job tells of itself is not trusted further than this: a checkpoint counts from the placement on and not from
    the future, so the work that a preemption would cost is never more than what the gang can have done.
    """
    status, spec = record.job.status, record.spec
    started = _seconds(record.placement.placed_at if record.placement else None, 0.0)
    committed = _seconds(status.checkpoint.committed_at if status.checkpoint else None, started)
    return RunInput(
        started=started,
        saved=max(started, min(committed, now.timestamp())),
        restart=terms.start_seconds(status, typical),
        grace=float(spec.grace) if status.stop_seconds is None else min(float(status.stop_seconds), float(spec.grace)),
        ends=_ends(record, started, typical),
        bound=min(_bound(record, status), terms.bound(spec, status, _gpus(record), record.price, now)),
        budget=preemption.budget_left(status.preempted_at, spec.budget, spec.budget_window, now),
        stops=status.preemptions or 0,
        yields=record.placement is not None and record.placement.yields,
    )


def _ends(record: Record, started: float, typical: float) -> float:
    """When it is expected to end. A gang that starts may take all of `readyTimeout`, and hardly ever does: with a
    `maxRuntime` it is expected to take what a start takes."""
    status, spec = record.job.status, record.spec
    told = terms.expected_end(status, record.pace)
    if told is None and started and status.running_since is None and spec.max_runtime is not None:
        return started + terms.start_seconds(status, typical) + terms.length(spec, status)
    return _seconds(told, FOREVER)


def _gpus(record: Record) -> int | Fraction:
    """GPUs of the placement, slices as parts of one."""
    return devices.held(record.placement, record.spec, record.gpu_type) if record.placement else 0


def _places(placement: Placement, spares: int) -> tuple[str, ...]:
    """Node names of the workers, and behind them those of as many spares as the job asks for, "" for one it lacks."""
    nodes = placement.node_of_index()
    if not spares:
        return nodes
    there = spares_by_index(placement.spares)
    return (*nodes, *(there.get(placement.workers + index, "") for index in range(spares)))


def _bound(record: Record, status: TrainingJobStatus) -> float:
    """When `maxRuntime` has ended the run at the latest, grace included; `readyTimeout` bounds the start before."""
    spec = record.spec
    if spec.max_runtime is None or record.placement is None:
        return FOREVER
    left = terms.length(spec, status) + spec.grace + terms.MARGIN
    if status.running_since is not None:
        return status.running_since.timestamp() + left
    return _seconds(record.placement.placed_at, 0.0) + spec.ready_timeout + left


def _seconds(moment: datetime | None, otherwise: float) -> float:
    return otherwise if moment is None else moment.timestamp()
