"""Commands to the gang of one job: what its ranks say and do, and what they shall do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from muster.cli import logs as workers_logs
from muster.cli import profiling, saving, suspending
from muster.cli import stacks as ranks_stacks
from muster.cli.printing import fail
from muster.cli.running import Context, Job, Kubeconfig, Namespace, run
from muster_protocol.launcher_status import PROFILE_STEPS


def logs(
    job: Job,
    namespace: Namespace = None,
    worker: Annotated[
        list[int] | None, typer.Option("--worker", help="Index of a worker; may be given again. Left out: 0.", min=0)
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Only what this rank has written.", min=0)] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All workers.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, until the job has ended.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only so many of each worker's last lines.", min=0)] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """What the job's workers have written.

    Those of the present gang, else of the last one: worker 0, or those that are named.

    \b
      muster logs llama-8b -n research --follow
      muster logs llama-8b -n research --rank 17 --tail 100
    """
    if sum((worker is not None, rank is not None, everybody)) > 1:
        fail("--worker, --rank and --all contradict each other; give one of them")
    workers = () if everybody else worker or (0,)
    work = workers_logs.logs(
        job,
        namespace,
        workers=workers,
        rank=rank,
        follow=follow,
        tail=tail,
        kubeconfig=kubeconfig,
        context=context,
    )
    raise typer.Exit(run(work))


def stacks(
    job: Job,
    namespace: Namespace = None,
    rank: Annotated[int | None, typer.Option(help="This rank alone.", min=0)] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """What the ranks are at now: their Python stacks.

    Ranks that are at the same stand together, those that are alone come first. The training goes on.

    \b
      muster stacks llama-8b -n research
    """
    work = ranks_stacks.stacks(job, namespace, rank=rank, kubeconfig=kubeconfig, context=context)
    raise typer.Exit(run(work))


def suspend(job: Job, namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Have a job save a checkpoint and stop, until it is resumed.

    It gives its GPUs back and keeps its checkpoints. The same as spec.suspend.

    \b
      muster suspend llama-8b -n research
    """
    raise typer.Exit(run(suspending.suspend(job, namespace, kubeconfig=kubeconfig, context=context)))


def resume(job: Job, namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Queue a suspended job again, to go on from its checkpoint.

    Its first submit time counts. One that was suspended for idle GPUs goes on as it is.

    \b
      muster resume llama-8b -n research
    """
    raise typer.Exit(run(suspending.resume(job, namespace, kubeconfig=kubeconfig, context=context)))


def save(job: Job, namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Have a job save a checkpoint now, and train on.

    Waits until it is committed.

    \b
      muster save llama-8b -n research
    """
    raise typer.Exit(run(saving.save(job, namespace, kubeconfig=kubeconfig, context=context)))


def profile(
    job: Job,
    namespace: Namespace = None,
    steps: Annotated[int, typer.Option(help="How many steps.", min=1, max=PROFILE_STEPS)] = 3,
    ranks: Annotated[str, typer.Option(help="0 or all.")] = "0",
    memory: Annotated[bool, typer.Option("--memory", help="Allocations of memory, too.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Record the next steps by PyTorch's profiler.

    The traces are stored beside the job's checkpoints, and the training goes on.

    \b
      muster profile llama-8b -n research --steps 3 --ranks all
    """
    if ranks not in ("0", "all"):
        fail(f"--ranks is {ranks!r}; say 0 or all")
    work = profiling.profile(
        job,
        namespace,
        steps=steps,
        everybody=ranks == "all",
        memory=memory,
        kubeconfig=kubeconfig,
        context=context,
    )
    raise typer.Exit(run(work))


COMMANDS: Final[tuple[Callable[..., None], ...]] = (logs, stacks, suspend, resume, save, profile)
"""In the order of the help."""
