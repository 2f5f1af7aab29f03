"""Checkpoints and faults: what saves cost and whether they succeed, what fails, and how runs come back."""

from __future__ import annotations

from typing import Final

from hack.monitoring.dashboards.parts import COUNT, RATIO, SECONDS, Dashboard, Panel, Query

_CLUSTER: Final = 'cluster=~"$cluster"'
_JOBS: Final = f'{_CLUSTER},namespace=~"$namespace"'
_QUEUES: Final = f'{_CLUSTER},queue=~"$queue"'


def _quantiles(title: str, description: str, metric: str) -> Panel:
    """Over an hour: saves are too rare for less."""
    queries = tuple(
        Query(f"histogram_quantile({part}, sum by (le) (rate({metric}_bucket{{{_JOBS}}}[1h])))", name)
        for part, name in ((0.5, "p50"), (0.95, "p95"))
    )
    return Panel(title, description, SECONDS, queries)


def _counted(title: str, description: str, expression: str, legend: str) -> Panel:
    return Panel(title, description, COUNT, (Query(expression, legend),), stacked=True)


DASHBOARD: Final = Dashboard(
    "muster-checkpoints",
    "Checkpoints and faults",
    "What saves cost, what fails, and how runs come back.",
    (
        (
            "Checkpoints",
            (
                Panel(
                    "Oldest last commits",
                    "Time since each job's last commit: the work that a failure would cost.",
                    SECONDS,
                    (
                        Query(
                            "topk(10, time() - max by (namespace, job_name) "
                            f"(muster_worker_checkpoint_last_committed_timestamp_seconds{{{_JOBS}}}))",
                            "{{namespace}}/{{job_name}}",
                        ),
                    ),
                    "bargauge",
                    ((3600.0, "orange"), (7200.0, "red")),
                ),
                _quantiles(
                    "Time of a save",
                    "From its start to its commit, of the saves of an hour.",
                    "muster_worker_checkpoint_seconds",
                ),
                _quantiles(
                    "Training stands still",
                    "For one save, on one rank, of the saves of an hour.",
                    "muster_worker_checkpoint_stall_seconds",
                ),
                Panel(
                    "Written",
                    "Bytes a second, by job.",
                    "Bps",
                    (
                        Query(
                            "topk(10, sum by (namespace, job_name) "
                            f"(rate(muster_worker_checkpoint_bytes_total{{{_JOBS}}}[$__rate_interval])))",
                            "{{namespace}}/{{job_name}}",
                        ),
                    ),
                ),
                _counted(
                    "Saves that the storage refused",
                    "In an hour, by job.",
                    "topk(10, sum by (namespace, job_name) "
                    f"(increase(muster_worker_checkpoint_failures_total{{{_JOBS}}}[1h])))",
                    "{{namespace}}/{{job_name}}",
                ),
                _counted(
                    "Saves left out",
                    "The one before was still being written.",
                    f"topk(10, sum by (namespace, job_name) (muster_worker_checkpoints_left_out{{{_JOBS}}}))",
                    "{{namespace}}/{{job_name}}",
                ),
            ),
        ),
        (
            "Faults",
            (
                _counted(
                    "Restarts",
                    "In an hour, by cause: of gangs, of processes in their pods, of lost workers.",
                    f"sum by (kind, cause) (increase(muster_restarts_total{{{_QUEUES}}}[1h]))",
                    "{{kind}} {{cause}}",
                ),
                Panel(
                    "Jobs that failed",
                    "Part of those that ended within a day.",
                    RATIO,
                    (
                        Query(
                            f'(sum(increase(muster_jobs_finished_total{{{_QUEUES},outcome="Failed"}}[1d]))'
                            f" or sum(increase(muster_jobs_finished_total{{{_QUEUES}}}[1d])) * 0)"
                            f" / (sum(increase(muster_jobs_finished_total{{{_QUEUES}}}[1d])) > 0)",
                            "failed",
                        ),
                    ),
                    steps=((0.05, "red"),),
                    most=1,
                ),
                _counted(
                    "Faults of nodes",
                    "Within the window of badNodes, by cause; counted where its policy is taint.",
                    f"sum by (cause) (muster_node_faults{{{_CLUSTER}}})"
                    f' or label_replace(sum(muster_fleet_gpus{{{_CLUSTER}}}) * 0, "cause", "none", "", "")',
                    "{{cause}}",
                ),
                _counted(
                    "Errors of GPUs",
                    "Xid and uncorrected memory errors in an hour, as the driver told.",
                    # A launcher has no series of a code before its first error; an increase begins at the first value.
                    f"sum by (xid) (increase(muster_worker_gpu_xid_errors_total{{{_JOBS}}}[1h]) > 0"
                    f" or (muster_worker_gpu_xid_errors_total{{{_JOBS}}}"
                    f" unless muster_worker_gpu_xid_errors_total{{{_JOBS}}} offset 1h))"
                    f" or label_replace(sum(gpu:muster_memory_errors:increase1h{{{_JOBS}}}),"
                    ' "xid", "memory", "", "")',
                    "{{xid}}",
                ),
                Panel(
                    "Between two failures",
                    "Time that one worker trains between two failures of its node, supposed and seen together.",
                    SECONDS,
                    (Query(f"max by (capacity) (muster_node_seconds_between_failures{{{_CLUSTER}}})", "{{capacity}}"),),
                ),
                _counted(
                    "Unsound numbers",
                    "Updates left out, and returns to a checkpoint, since each run began.",
                    f"topk(10, sum by (namespace, job_name) (muster_worker_updates_skipped{{{_JOBS}}} + "
                    f"muster_worker_rollbacks{{{_JOBS}}}))",
                    "{{namespace}}/{{job_name}}",
                ),
            ),
        ),
    ),
)
