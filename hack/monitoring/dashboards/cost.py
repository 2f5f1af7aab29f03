"""Cost: what runs costs now and has cost, by queue; what is waste; what spot capacity saves."""

from __future__ import annotations

from typing import Final

from hack.monitoring.dashboards.parts import MONEY, RATIO, Dashboard, Panel, Query, Variable

_HERE: Final = 'cluster=~"$cluster"'
_QUEUE: Final = f'{_HERE},queue=~"$queue"'
_JOB: Final = "cluster, namespace, job_name"
_POOL: Final = "cluster, gpu_type, capacity"
"""Of what is joined: while one operator takes over from another, Prometheus has the series of both."""


def _summed(expression: str, window: str) -> str:
    """Money within a window, of money an hour that is looked at every five minutes."""
    return f"sum(sum_over_time(({expression})[{window}:5m])) / 12"


_FLEET: Final = f"cluster:muster_fleet_cost_per_hour:sum{{{_HERE}}}"
"""There also where no job holds a GPU."""
_COST: Final = f"sum by (queue) (queue:muster_cost_per_hour:sum{{{_QUEUE}}})"

_CURRENCY: Final = Variable("currency", "muster_gpu_price_per_hour", "currency", 'cluster=~"$cluster"', several=False)
"""Only told: panels add up what they find, and clusters of two currencies are looked at one by one."""

DASHBOARD: Final = Dashboard(
    "muster-cost",
    "Cost",
    "At the configured prices, looked at every five minutes. What is billed comes from the ledger.",
    (
        (
            "Now",
            (
                Panel(
                    "Jobs, an hour",
                    "What the GPUs that jobs hold cost in an hour.",
                    MONEY,
                    (Query(f"sum({_COST})", "jobs"),),
                    "stat",
                    width=6,
                ),
                Panel(
                    "Fleet, an hour",
                    "What all GPUs cost in an hour, whoever uses them.",
                    MONEY,
                    (Query(f"sum({_FLEET})", "fleet"),),
                    "stat",
                    width=6,
                ),
                Panel(
                    "Last 30 days",
                    "What jobs have cost in the last 30 days.",
                    MONEY,
                    (Query(_summed(_COST, "30d"), "30 days"),),
                    "stat",
                    width=6,
                ),
                Panel(
                    "A month at this pace",
                    "730 hours at the mean of the last day, or of what is known of it.",
                    MONEY,
                    (Query(f"avg_over_time((sum({_COST}) or 0 * sum({_FLEET}))[1d:5m]) * 730", "a month"),),
                    "stat",
                    width=6,
                ),
            ),
        ),
        (
            "By queue",
            (
                Panel("An hour", "By queue.", MONEY, (Query(_COST, "{{queue}}"),), width=12, stacked=True),
                Panel(
                    "In the time shown",
                    "By queue.",
                    MONEY,
                    (Query(f"sort_desc(sum by (queue) (sum_over_time(({_COST})[$__range:5m])) / 12)", "{{queue}}"),),
                    "bargauge",
                    width=12,
                ),
                Panel(
                    "Budgets",
                    "Part of the month's budget that is used.",
                    RATIO,
                    (
                        Query(
                            f"max by (queue, gpu_type, unit) (muster_queue_budget_used_ratio{{{_QUEUE}}})",
                            "{{queue}} {{gpu_type}} {{unit}}",
                        ),
                    ),
                    "bargauge",
                    ((0.8, "orange"), (0.9, "red")),
                    12,
                    most=1,
                ),
                Panel(
                    "Waste, an hour",
                    "What of the cost was not training, by what it was instead.",
                    MONEY,
                    (Query(f"sum by (part) (queue:muster_waste_per_hour:sum{{{_QUEUE}}})", "{{part}}"),),
                    width=12,
                    stacked=True,
                ),
            ),
        ),
        (
            "Savings",
            (
                Panel(
                    "Idle, an hour",
                    "What free GPUs cost.",
                    MONEY,
                    (
                        Query(
                            f"sum by (gpu_type, capacity) (max by ({_POOL}) (muster_fleet_free_gpus{{{_HERE}}})"
                            f" * on ({_POOL}) max by ({_POOL}) (muster_gpu_price_per_hour{{{_HERE}}}))",
                            "{{gpu_type}} {{capacity}}",
                        ),
                    ),
                    width=12,
                    stacked=True,
                ),
                Panel(
                    "Saved by spot, an hour",
                    "What the same GPUs would cost more on demand.",
                    MONEY,
                    (
                        Query(
                            f"sum by (gpu_type) ((max by ({_JOB}) (muster_job_gpus) "
                            f"* on ({_JOB}) group_left (gpu_type) "
                            f'group by ({_JOB}, gpu_type) (muster_job_info{{{_QUEUE},capacity="spot"}})) '
                            "* on (cluster, gpu_type) group_left () "
                            '(max by (cluster, gpu_type) (muster_gpu_price_per_hour{capacity="on-demand"}) '
                            '- max by (cluster, gpu_type) (muster_gpu_price_per_hour{capacity="spot"})))'
                            f" or sum by (gpu_type) (muster_fleet_gpus{{{_HERE}}}) * 0",
                            "{{gpu_type}}",
                        ),
                    ),
                    width=12,
                    stacked=True,
                ),
            ),
        ),
    ),
    (_CURRENCY,),
)
