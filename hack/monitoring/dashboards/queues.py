"""Queues: who waits, for what and how long; quota, shares, and who borrows from whom."""

from __future__ import annotations

from typing import Final

from hack.monitoring.dashboards.parts import COUNT, RATIO, SECONDS, Dashboard, Panel, Query

_HERE: Final = 'cluster=~"$cluster",queue=~"$queue"'


def _by_queue(title: str, description: str, metric: str, unit: str = COUNT) -> Panel:
    """Not stacked: a queue counts those below it, too."""
    return Panel(title, description, unit, (Query(f"sum by (queue) ({metric}{{{_HERE}}})", "{{queue}}"),))


DASHBOARD: Final = Dashboard(
    "muster-queues",
    "Queues",
    "Depth, waits, shares, and who borrows from whom.",
    (
        (
            "Waiting",
            (
                Panel(
                    "Jobs that wait",
                    "By queue and priority class.",
                    COUNT,
                    (
                        Query(
                            f"sum by (queue, priority_class) (muster_queue_waiting_jobs{{{_HERE}}}) > 0",
                            "{{queue}} {{priority_class}}",
                        ),
                    ),
                    stacked=True,
                ),
                _by_queue("GPUs that they ask for", "By queue.", "muster_queue_waiting_gpus"),
                Panel(
                    "What they wait for",
                    "Reasons, as in each job's condition Admitted.",
                    COUNT,
                    (
                        Query(
                            f"label_replace(sum by (reason) (muster_queue_waiting_reason_jobs{{{_HERE}}}) > 0, "
                            '"reason", "not told yet", "reason", "")',
                            "{{reason}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Longest wait",
                    "Of the job of each queue that waits longest for room or quota; not for a held queue, a window or "
                    "a budget.",
                    SECONDS,
                    (Query(f"max by (queue) (muster_queue_oldest_wait_seconds{{{_HERE}}})", "{{queue}}"),),
                    steps=((3600.0, "orange"), (86_400.0, "red")),
                ),
                Panel(
                    "Waits that have ended",
                    "Before placements of the last hour; half, and 95 of 100, took less. A guess between 1 min, "
                    "10 min, 1 h, 6 h and 1 day.",
                    SECONDS,
                    (
                        Query(f"max by (queue) (queue:muster_wait_seconds:p50_1h{{{_HERE}}})", "{{queue}} p50"),
                        Query(f"max by (queue) (queue:muster_wait_seconds:p95_1h{{{_HERE}}})", "{{queue}} p95"),
                    ),
                ),
                Panel(
                    "Placements",
                    "Made in an hour, by queue.",
                    COUNT,
                    (Query(f"sum by (queue) (increase(muster_admissions_total{{{_HERE}}}[1h]))", "{{queue}}"),),
                    stacked=True,
                ),
            ),
        ),
        (
            "Quota",
            (
                _by_queue(
                    "GPUs in use", "By queue; those of the queues below one count in it, too.", "muster_queue_used_gpus"
                ),
                _by_queue("Borrowed", "GPUs that a queue uses above its nominal quota.", "muster_queue_borrowed_gpus"),
                _by_queue("Lent", "GPUs of a queue's nominal quota that others use.", "muster_queue_lent_gpus"),
                Panel(
                    "Use of quota",
                    "GPUs in use by nominal quota; above 1 the queue borrows.",
                    RATIO,
                    (
                        Query(
                            f"sum by (queue) (muster_queue_used_gpus{{{_HERE}}})"
                            f" / (sum by (queue) (muster_queue_nominal_gpus{{{_HERE}}}) > 0)",
                            "{{queue}}",
                        ),
                    ),
                    "bargauge",
                    ((1.0, "orange"),),
                    most=1,
                ),
                _by_queue(
                    "Share of the cluster",
                    "Dominant share that a queue holds now.",
                    "muster_queue_share_ratio",
                    RATIO,
                ),
                _by_queue(
                    "Share of the past",
                    "Fading mean of the share: who has had much yields to who has had little.",
                    "muster_queue_past_share_ratio",
                    RATIO,
                ),
            ),
        ),
        (
            "Preemption",
            (
                Panel(
                    "Preemptions",
                    "Placements that the planner ended in an hour, by reason.",
                    COUNT,
                    (Query(f"sum by (reason) (increase(muster_preemptions_total{{{_HERE}}}[1h]))", "{{reason}}"),),
                    width=12,
                    stacked=True,
                ),
                Panel(
                    "Work lost by them",
                    "GPU-seconds in an hour: since the last commit, and the restart.",
                    SECONDS,
                    (
                        Query(
                            f"sum by (reason) (increase(muster_preemption_lost_gpu_seconds_total{{{_HERE}}}[1h]))",
                            "{{reason}}",
                        ),
                    ),
                    width=12,
                    stacked=True,
                ),
            ),
        ),
    ),
)
