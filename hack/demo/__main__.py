"""`python -m hack.demo`: brings a cluster, Muster and a training run up, kills a worker, and shows what came of it.

Exit code 0 only if the job succeeded, resumed at the last committed step, and its losses are bit by bit those of a run
that nobody disturbed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping

from rich.console import Console

from hack.cluster.errors import ClusterError
from hack.cluster.progress import Progress
from hack.demo import run, verify
from hack.demo.bring_up import BUCKET, NAMESPACE, bring_up
from hack.demo.kube import Kube, KubeError
from hack.demo.plot import curve


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.demo", description="A run that loses a worker and goes on.")
    parser.add_argument("--name", default="muster", help="the local cluster (default: %(default)s)")
    parser.add_argument("--install-only", action="store_true", help="cluster, images and chart, without the training")
    sizes = parser.add_argument_group("the cluster, where it isn't up yet (or is, with the same)")
    for flag, what in (("--nodes", "real nodes"), ("--gpus", "GPUs of each"), ("--kwok-nodes", "simulated nodes")):
        sizes.add_argument(flag, type=int, default=argparse.SUPPRESS, metavar="N", help=what)
    options = parser.parse_args()
    wanted = {name: value for name, value in vars(options).items() if name in ("nodes", "gpus", "kwok_nodes")}
    os.environ.setdefault("MUSTER_CLUSTER", "native")  # the demo needs the S3 server, which kind does not bring
    console = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()
    try:
        kube = bring_up(options.name, **wanted)
        if options.install_only:
            _tell_next_steps(console, kube, "")
            return 0
        outcome = run.run(kube, console, Progress(), NAMESPACE, BUCKET)
        verdict = verify.judge(outcome.story)
        _tell(console, kube, outcome, verdict)
    except (ClusterError, KubeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `make cluster-down` takes the cluster away", file=sys.stderr)
        return 130
    console.print(f"{'demo passed' if verdict.good else 'demo FAILED'} in {time.monotonic() - started:.0f} s")
    return 0 if verdict.good else 1


def _tell(console: Console, kube: Kube, outcome: run.Outcome, verdict: verify.Verdict) -> None:
    """The curve, the checkpoints, what held and what did not, and what to try next."""
    story = outcome.story
    if story.losses:
        marks = {float(step): word for step, word in _marks(story).items()}
        points = [(float(step), loss) for step, loss in story.losses.items()]
        console.print("\nloss by step", style="bold")
        console.print(curve(points, marks=marks), markup=False)
    console.print("\ncheckpoints in S3", style="bold")
    for row in outcome.checkpoints:
        console.print(f"  {row.uri:<60} {row.files:>4} objects {row.size / 2**20:8.1f} MiB", markup=False)
    console.print("\nwhat this shows", style="bold")
    for fact in verdict.facts:
        console.print(f"  yes  {fact}", markup=False)
    for fault in verdict.faults:
        console.print(f"  NO   {fault}", style="red", markup=False)
    _tell_next_steps(console, kube, outcome.job)


def _tell_next_steps(console: Console, kube: Kube, job: str) -> None:
    console.print("\nlook around", style="bold")
    for line in _next_steps(kube.cluster.name, job):
        console.print(f"  {line}", markup=False)
    console.print()


def _marks(story: verify.Story) -> Mapping[int, str]:
    marks = {}
    if story.killed_at is not None:
        marks[story.killed_at] = "a worker is killed"
    if story.resumed_from is not None:
        marks[story.resumed_from] = "resumed from here"
    return marks


def _next_steps(cluster: str, job: str) -> list[str]:
    """Commands to go on with; `job` is the one that has run, "" where none has."""
    flag = "" if cluster == "muster" else f" --name {cluster}"
    demo = f".venv/bin/python -m hack.demo{flag}" if flag else "make demo"
    down = f".venv/bin/python -m hack.cluster down{flag}" if flag else "make cluster-down"
    about = (
        f"kubectl describe tj -n {NAMESPACE} {job}",
        f"muster status {job} -n {NAMESPACE}",
        f"muster explain {job} -n {NAMESPACE}",
    )
    return [
        f'eval "$(.venv/bin/python -m hack.cluster env{flag})"   # kubectl, muster and S3 settings for this shell',
        "kubectl get trainingjobs -A        # short: kubectl get tj -A",
        *(about if job else ("kubectl get tq                     # the queue; `muster queues` says more",)),
        "kubectl explain trainingjob.spec",
        "docs/first-job.md                  # goes on from here: a run of your own",
        f"{demo:<34} # {'again, in a few minutes: the cluster is still up' if job else 'a run that loses a worker'}",
        f"{down:<34} # ends it all",
    ]


if __name__ == "__main__":
    sys.exit(main())
