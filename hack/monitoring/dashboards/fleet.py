"""Fleet: what the GPUs do, what is free and in which pieces, and whether the operator is well."""

from __future__ import annotations

from typing import Final

from hack.monitoring.dashboards.parts import COUNT, RATIO, SECONDS, Dashboard, Panel, Query

_HERE: Final = 'cluster=~"$cluster"'
_HELD: Final = "and on (cluster, namespace, pod) pod:muster_job:info"
"""The DCGM exporter tells of free GPUs, too."""


def _mean(recorded: str) -> str:
    return f"avg({recorded}{{{_HERE}}} {_HELD})"


DASHBOARD: Final = Dashboard(
    "muster-fleet",
    "Fleet",
    "Utilisation, free and fragmented capacity by topology, and health.",
    (
        (
            "GPUs",
            (
                Panel(
                    "Utilisation",
                    "Mean utilisation of the GPUs that jobs hold: the part of the time in which any kernel ran.",
                    RATIO,
                    (Query(_mean("gpu:muster_utilization:ratio"), "utilisation"),),
                    "stat",
                    ((0.0, "red"), (0.5, "orange"), (0.7, "green")),
                    6,
                    most=1,
                ),
                Panel(
                    "Held",
                    "GPUs that somebody holds, by all that there are.",
                    RATIO,
                    (
                        Query(
                            f"1 - sum(muster_fleet_free_gpus{{{_HERE}}} + muster_fleet_unusable_gpus{{{_HERE}}})"
                            f" / sum(muster_fleet_gpus{{{_HERE}}})",
                            "held",
                        ),
                    ),
                    "stat",
                    width=6,
                    most=1,
                ),
                Panel(
                    "GPUs",
                    "By type: free ones on usable nodes, those on nodes that are not ready or cordoned, and all.",
                    COUNT,
                    (
                        Query(
                            f"sum by (gpu_type, capacity) (muster_fleet_gpus{{{_HERE}}})",
                            "{{gpu_type}} {{capacity}}: all",
                        ),
                        Query(
                            f"sum by (gpu_type, capacity) (muster_fleet_free_gpus{{{_HERE}}})",
                            "{{gpu_type}} {{capacity}}: free",
                        ),
                        Query(
                            f"sum by (gpu_type, capacity) (muster_fleet_unusable_gpus{{{_HERE}}})",
                            "{{gpu_type}} {{capacity}}: unusable",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Utilisation by kind",
                    "How busy GPUs, their engines and tensor cores are; the last two come from the DCGM exporter.",
                    RATIO,
                    (
                        Query(_mean("gpu:muster_utilization:ratio"), "any kernel"),
                        Query(_mean("gpu:muster_engine_active:ratio"), "engine"),
                        Query(_mean("gpu:muster_tensor_active:ratio"), "tensor cores"),
                    ),
                    width=12,
                    most=1,
                ),
                Panel(
                    "Least busy jobs",
                    "Jobs whose GPUs are busy for the smallest part of the time.",
                    RATIO,
                    (
                        Query(
                            f'bottomk(10, job:muster_gpu_utilization:avg{{{_HERE},namespace=~"$namespace"}})',
                            "{{namespace}}/{{job_name}}",
                        ),
                    ),
                    "bargauge",
                    ((0.0, "red"), (0.5, "green")),
                    12,
                    most=1,
                ),
            ),
        ),
        (
            "Room",
            (
                Panel(
                    "Largest free domain",
                    "Free GPUs of the domain that has most of them: the largest gang that starts now within one.",
                    COUNT,
                    (
                        Query(
                            f"max by (level, gpu_type, capacity) (muster_fleet_largest_free_domain_gpus{{{_HERE}}})",
                            "{{level}} {{gpu_type}} {{capacity}}",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Fragmentation",
                    "Part of the free GPUs that lie in domains where others are in use.",
                    RATIO,
                    (
                        Query(
                            f"max by (level, gpu_type, capacity) (muster_fleet_fragmentation_ratio{{{_HERE}}})",
                            "{{level}} {{gpu_type}} {{capacity}}",
                        ),
                    ),
                    steps=((0.5, "orange"),),
                    width=12,
                    most=1,
                ),
            ),
        ),
        (
            "Health",
            (
                Panel(
                    "Nodes in quarantine",
                    "Nodes on which gangs failed again and again.",
                    COUNT,
                    (Query(f"count(muster_node_quarantined{{{_HERE}}}) or vector(0)", "nodes"),),
                    "stat",
                    ((1.0, "orange"), (5.0, "red")),
                    6,
                ),
                Panel(
                    "Leaders",
                    "Operators that lead; exactly one should.",
                    COUNT,
                    (Query(f"sum(muster_operator_leader{{{_HERE}}})", "leaders"),),
                    "stat",
                    ((0.0, "red"), (1.0, "green"), (2.0, "red")),
                    6,
                ),
                Panel(
                    "Time of a plan",
                    "95 of 100 plans of ten minutes took at most so long.",
                    SECONDS,
                    (
                        Query(
                            "histogram_quantile(0.95, sum by (le) "
                            f"(rate(muster_plan_duration_seconds_bucket{{{_HERE}}}[10m])))",
                            "p95",
                        ),
                    ),
                    steps=((2.0, "red"),),
                    width=6,
                ),
                Panel(
                    "Operator's errors",
                    "Looks at jobs that failed, and requests that the API server refused, each second.",
                    COUNT,
                    (
                        Query(
                            f"sum(rate(muster_operator_reconcile_errors_total{{{_HERE}}}[$__rate_interval]))",
                            "looks at jobs",
                        ),
                        Query(
                            "sum(rate(muster_operator_api_requests_total"
                            f'{{{_HERE},code=~"5..|429"}}[$__rate_interval]))'
                            f" or sum(muster_operator_leader{{{_HERE}}}) * 0",
                            "requests",
                        ),
                    ),
                    width=6,
                ),
            ),
        ),
    ),
)
