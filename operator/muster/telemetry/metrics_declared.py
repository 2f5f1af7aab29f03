"""Every metric of the operator, declared once; those of training pods are in `muster_protocol.metrics`.

Labels are bounded by what the cluster has: queues, flavours, levels. What bears a job's name exists only while the job
holds GPUs, four series a job. Of what waits there are numbers by queue.
"""

from __future__ import annotations

from typing import Final

from muster_protocol.metrics import RUNTIME, Kind, Metric

EVERY_REPLICA: Final = "each replica"
LEADER: Final = "the leader"

JOB: Final = ("namespace", "job_name")
FLAVOUR: Final = ("gpu_type", "capacity")
QUEUE_FLAVOUR: Final = ("queue", *FLAVOUR)

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
WAITS: Final = (
    1.0,
    5.0,
    15.0,
    _MINUTE,
    5 * _MINUTE,
    15 * _MINUTE,
    _HOUR,
    4 * _HOUR,
    12 * _HOUR,
    _DAY,
    3 * _DAY,
    7 * _DAY,
)
"""Seconds: from an idle cluster to a week in the queue."""
QUEUE_WAITS: Final = (_MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY)
"""Fewer, for there are a thousand queues: each bucket is then 60 kB of every scrape."""


def _gauge(name: str, text: str, *labels: str, who: str = LEADER) -> Metric:
    return Metric(name, Kind.GAUGE, text, labels, who)


def _counter(name: str, text: str, *labels: str, who: str = LEADER) -> Metric:
    return Metric(name, Kind.COUNTER, text, labels, who)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str, who: str = LEADER) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, labels, who, buckets)


# -- the operator's own work -------------------------------------------------------------------------------------------

LEADS: Final = _gauge("muster_operator_leader", "1 while this process leads.", who=EVERY_REPLICA)
REQUESTS: Final = _counter(
    "muster_operator_api_requests_total", "Requests to the API server.", "method", "code", who=EVERY_REPLICA
)
WRITES: Final = _counter(
    "muster_operator_api_writes_total",
    "Writes that the API server was asked for, its Lease aside; `rehearse` are dry runs.",
    "verb",
    "resource",
)
REQUEST_SECONDS: Final = _histogram(
    "muster_operator_api_request_seconds",
    "Time until the API server's answer began.",
    (0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
    "method",
    who=EVERY_REPLICA,
)
PLAN_SECONDS: Final = _histogram(
    "muster_plan_duration_seconds",
    "Time that a plan took.",
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
RECONCILE_ERRORS: Final = _counter(
    "muster_operator_reconcile_errors_total", "Looks at a job, and plans, that failed; each is tried again."
)
WORK_DEPTH: Final = _gauge("muster_operator_work_queue_depth", "Jobs that have changed and wait for their turn.")
WORK_AGE: Final = _gauge(
    "muster_operator_work_queue_age_seconds", "Time since the loop last gave turns, while jobs wait for theirs; else 0."
)
AT_WORK: Final = _gauge("muster_operator_jobs_at_work", "Jobs whose objects are being written now.")
RELISTS: Final = _counter("muster_operator_relists_total", "Lists made afresh.", "path")
WATCH_AGE: Final = _gauge("muster_operator_watch_age_seconds", "Time since its last sign of life.", "path")
EVENTS_DROPPED: Final = _counter("muster_operator_events_dropped_total", "Events not written for want of time.")

# -- the history -------------------------------------------------------------------------------------------------------

HISTORY_UP: Final = _gauge(
    "muster_history_up",
    "1 while the history's database takes what is written, else 0. Absent without one.",
)
HISTORY_WAITING: Final = _gauge("muster_history_waiting_rows", "Rows of the history that are not written yet.")
HISTORY_WRITTEN: Final = _counter("muster_history_written_rows_total", "Rows of the history that were written.")
HISTORY_DROPPED: Final = _counter(
    "muster_history_dropped_rows_total", "Rows that found no room while they waited, or that the database refused."
)

# -- jobs --------------------------------------------------------------------------------------------------------------

JOBS: Final = _gauge("muster_jobs", "Jobs that exist, the ended ones included.", "queue", "phase")
JOB_INFO: Final = _gauge(
    "muster_job_info", "1 for each job that holds GPUs or nodes.", *JOB, "queue", *FLAVOUR, "priority_class"
)
JOB_GPUS: Final = _gauge("muster_job_gpus", "GPUs that the job holds, spares included, slices as parts of one.", *JOB)
JOB_PHASE: Final = _gauge("muster_job_phase", "1, with the job's phase as a label.", *JOB, "phase")
JOB_COST: Final = _gauge(
    "muster_job_cost_per_hour", "Money for an hour of the GPUs that the job holds; 0 where they have no price.", *JOB
)
ADMISSIONS: Final = _counter("muster_admissions_total", "Placements that were made.", "queue")
WAIT_SECONDS: Final = _histogram(
    "muster_wait_seconds",
    "Time in the queue before each placement: since the job was submitted, or since its last placement ended.",
    QUEUE_WAITS,
    "queue",
)
PRIORITY_WAIT_SECONDS: Final = _histogram(
    "muster_priority_wait_seconds", "The same by priority, over all queues.", WAITS, "priority_class"
)
PREEMPTIONS: Final = _counter(
    "muster_preemptions_total", "Placements that the planner has ended, by the queue that gave room.", "queue", "reason"
)
LOST: Final = _counter(
    "muster_preemption_lost_gpu_seconds_total",
    "Work lost by that: since the last commit, and the restart.",
    "queue",
    "reason",
)
RESTARTS: Final = _counter(
    "muster_restarts_total",
    "Restarts after a failure: of the gang, of its processes in their pods (in-place), or of lost workers (worker).",
    "queue",
    "kind",
    "cause",
)
FINISHED: Final = _counter("muster_jobs_finished_total", "Jobs that have ended.", "queue", "outcome")

# -- queues ------------------------------------------------------------------------------------------------------------

WAITING: Final = _gauge("muster_queue_waiting_jobs", "Jobs that wait, whatever for.", "queue", "priority_class")
WAITING_GPUS: Final = _gauge("muster_queue_waiting_gpus", "GPUs that they ask for.", "queue")
WAITING_WHY: Final = _gauge("muster_queue_waiting_reason_jobs", "Jobs that wait, by what for.", "queue", "reason")
OLDEST: Final = _gauge(
    "muster_queue_oldest_wait_seconds",
    "How long the one has waited that waits longest for room or quota; 0 when none does. Who waits for a held queue,"
    " a window or a budget is left out.",
    "queue",
)
OWED: Final = _gauge(
    "muster_queue_owed_wait_seconds",
    "How long the one has waited that waits longest though unused quota of this queue would hold all it asks for; 0"
    " when none does. It may be in a queue below.",
    "queue",
)
NOMINAL: Final = _gauge(
    "muster_queue_nominal_gpus",
    "Quota of the queue and those below it. Absent where none is named, or it is 0 and nothing is held.",
    *QUEUE_FLAVOUR,
)
USED: Final = _gauge("muster_queue_used_gpus", "GPUs that jobs of the queue and those below it hold.", *QUEUE_FLAVOUR)
BORROWED: Final = _gauge("muster_queue_borrowed_gpus", "What of that is above their nominal.", *QUEUE_FLAVOUR)
LENT: Final = _gauge(
    "muster_queue_lent_gpus",
    "What others use of their nominal, shared out over all who leave some unused.",
    *QUEUE_FLAVOUR,
)
SHARE: Final = _gauge("muster_queue_share_ratio", "Dominant share of the cluster that they hold, 0 to 1.", "queue")
PAST_SHARE: Final = _gauge(
    "muster_queue_past_share_ratio", "Fading mean of that share: what fairness holds against the queue.", "queue"
)
WEIGHT: Final = _gauge("muster_queue_weight", "The queue's weight beside others of the same parent.", "queue")
BUDGET: Final = _gauge(
    "muster_queue_budget_used_ratio",
    "Part of a month's budget that is used: of `gpu_hours` or `cost`, for one GPU type or (empty) all.",
    "queue",
    "gpu_type",
    "unit",
)

# -- the fleet ---------------------------------------------------------------------------------------------------------

FLEET: Final = _gauge("muster_fleet_gpus", "GPUs of the nodes that exist.", *FLAVOUR)
FREE: Final = _gauge("muster_fleet_free_gpus", "GPUs on usable nodes that nobody holds.", *FLAVOUR)
UNUSABLE: Final = _gauge("muster_fleet_unusable_gpus", "GPUs on nodes that are not ready, or cordoned.", *FLAVOUR)
LARGEST: Final = _gauge(
    "muster_fleet_largest_free_domain_gpus", "Free GPUs of the domain that has most of them.", "level", *FLAVOUR
)
FRAGMENTED: Final = _gauge(
    "muster_fleet_fragmentation_ratio",
    "Part of the free GPUs that lie in domains of the level where others are in use or unusable, 0 to 1.",
    "level",
    *FLAVOUR,
)
PRICE: Final = _gauge("muster_gpu_price_per_hour", "Money for an hour of one GPU, as configured.", *FLAVOUR, "currency")
FAILURE_FREE: Final = _gauge(
    "muster_node_seconds_between_failures",
    "Time that one worker trains between two failures of its node, by what is supposed and seen.",
    "capacity",
)
QUARANTINED: Final = _gauge("muster_node_quarantined", "1 for each node in quarantine.", "node")
SPARED: Final = _gauge(
    "muster_nodes_spared",
    "Nodes that fail often and stay in service: too many of their kind are in quarantine already.",
)
FAULTS: Final = _gauge("muster_node_faults", "Faults of nodes within the window of badNodes, by cause.", "cause")

OPERATOR: Final = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
"""All of them, in the order of their declarations."""

ALL: Final = (*OPERATOR, *RUNTIME)
