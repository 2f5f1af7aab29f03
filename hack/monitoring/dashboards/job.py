"""Job: everything about one run."""

from __future__ import annotations

from typing import Final

from hack.monitoring.dashboards.parts import (
    BYTES,
    CELSIUS,
    COUNT,
    MONEY,
    RATIO,
    SECONDS,
    WATTS,
    Dashboard,
    Panel,
    Query,
    Variable,
)

_HERE: Final = 'cluster=~"$cluster",namespace=~"$namespace",job_name="$job"'


def _last(title: str, description: str, unit: str, expression: str) -> Panel:
    return Panel(title, description, unit, (Query(expression, title),), "stat", width=4)


def _run(title: str, description: str, metric: str, unit: str = COUNT) -> Panel:
    return Panel(title, description, unit, (Query(f"max({metric}{{{_HERE}}})", title),))


def _gpus(title: str, description: str, recorded: str, unit: str) -> Panel:
    """Of each GPU of the job's pods, whoever told of it."""
    joined = f"{recorded} * on (cluster, namespace, pod) group_left (index) pod:muster_job:info{{{_HERE}}}"
    return Panel(title, description, unit, (Query(joined, "{{index}}: GPU {{gpu}}"),))


DASHBOARD: Final = Dashboard(
    "muster-job",
    "Job",
    "Everything about one run.",
    (
        (
            "Run",
            (
                _last(
                    "Progress",
                    "Part of the run's steps that are done.",
                    RATIO,
                    f"max(muster_run_progress_ratio{{{_HERE}}})",
                ),
                _last(
                    "Time to go", "At the pace of the last minute.", SECONDS, f"min(muster_run_eta_seconds{{{_HERE}}})"
                ),
                _last("GPUs", "That the job holds.", COUNT, f"max(muster_job_gpus{{{_HERE}}})"),
                _last("Cost", "Money an hour.", MONEY, f"max(muster_job_cost_per_hour{{{_HERE}}})"),
                _last(
                    "Goodput",
                    "Part of the last hour that was training.",
                    RATIO,
                    f"max(job:muster_goodput:ratio_rate1h{{{_HERE}}})",
                ),
                _last(
                    "Utilisation",
                    "Mean of the job's GPUs.",
                    RATIO,
                    f"max(job:muster_gpu_utilization:avg{{{_HERE}}})",
                ),
                _run("Loss", "Last reported loss of the global batch.", "muster_worker_loss"),
                _run("Tokens a second", "Of the whole gang.", "muster_worker_tokens_per_second"),
                _run("Samples a second", "Of the whole gang.", "muster_worker_samples_per_second"),
                _run("MFU", "Model FLOP utilisation.", "muster_worker_mfu_ratio", RATIO),
                _run("Gradient norm", "As an update got it, after clipping.", "muster_worker_gradient_norm"),
                _run("Step", "Last step that was reported.", "muster_worker_step"),
            ),
        ),
        (
            "Time",
            (
                Panel(
                    "Where the time goes",
                    "Part of the time, by what it was spent on.",
                    RATIO,
                    (
                        Query(
                            f"sum by (part) (job:muster_run_seconds:rate5m{{{_HERE}}})"
                            f" / on () group_left () (sum(job:muster_run_seconds:rate5m{{{_HERE}}}) > 0)",
                            "{{part}}",
                        ),
                    ),
                    width=12,
                    stacked=True,
                    most=1,
                ),
                Panel(
                    "Where a step's time goes",
                    "Mean seconds of a step over all ranks, by stage.",
                    SECONDS,
                    (
                        Query(
                            f"sum by (stage) (rate(muster_worker_stage_seconds_total{{{_HERE}}}[$__rate_interval]))"
                            f" / on () group_left () sum(rate(muster_worker_steps_total{{{_HERE}}}[$__rate_interval]))",
                            "{{stage}}",
                        ),
                    ),
                    width=12,
                    stacked=True,
                ),
                Panel(
                    "Step time",
                    "Half of the steps take less, 99 of 100 take less.",
                    SECONDS,
                    tuple(
                        Query(
                            f"histogram_quantile({quantile}, sum by (le) "
                            f"(rate(muster_worker_step_seconds_bucket{{{_HERE}}}[$__rate_interval])))",
                            f"p{quantile * 100:.0f}",
                        )
                        for quantile in (0.5, 0.99)
                    ),
                ),
                Panel(
                    "Own time of a step",
                    "Seconds that each rank works by itself; a rank far above the others holds them up.",
                    SECONDS,
                    (
                        Query(
                            f"rate(muster_worker_own_seconds_total{{{_HERE}}}[$__rate_interval])"
                            f" / rate(muster_worker_steps_total{{{_HERE}}}[$__rate_interval])",
                            "rank {{rank}}",
                        ),
                    ),
                ),
                Panel(
                    "Stragglers",
                    "Own time of each rank's step over that of the median rank, of two the faster one: above 1 the "
                    "others wait for it.",
                    COUNT,
                    (Query(f"topk(16, rank:muster_straggler_score:ratio{{{_HERE}}})", "rank {{rank}}"),),
                    steps=((1.5, "orange"), (3.0, "red")),
                ),
            ),
        ),
        (
            "GPUs",
            (
                Panel(
                    "Utilisation of GPUs",
                    "Of the least busy, and the mean.",
                    RATIO,
                    (
                        Query(f"job:muster_gpu_utilization:min{{{_HERE}}}", "least busy"),
                        Query(f"job:muster_gpu_utilization:avg{{{_HERE}}}", "mean"),
                    ),
                    most=1,
                ),
                Panel(
                    "Tensor cores",
                    "Part of the time in which tensor cores worked; from the DCGM exporter.",
                    RATIO,
                    (Query(f"job:muster_gpu_tensor_active:avg{{{_HERE}}}", "mean"),),
                    most=1,
                ),
                _gpus("Memory", "Memory of each GPU that is taken.", "gpu:muster_memory_used:bytes", BYTES),
                _gpus("Power", "That each GPU draws.", "gpu:muster_power:watts", WATTS),
                _gpus("Temperature", "Of each GPU.", "gpu:muster_temperature:celsius", CELSIUS),
                Panel(
                    "Ranks",
                    "Rank processes that run.",
                    COUNT,
                    (Query(f"sum(muster_worker_ranks_running{{{_HERE}}})", "ranks"),),
                ),
            ),
        ),
    ),
    (
        Variable(
            "job",
            "muster_job_info",
            "job_name",
            'cluster=~"$cluster",namespace=~"$namespace",queue=~"$queue"',
            several=False,
        ),
    ),
)
