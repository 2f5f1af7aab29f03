"""`muster`: run the operator, and look at jobs.

Every error is a sentence on stderr that says how to mend it; a traceback is a bug. In docstrings a paragraph behind a
backspace is shown by `--help` as it stands.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from muster import __version__
from muster.api.trainingqueue import StopPolicy
from muster.cli import checkpoint, cost, explaining, gang, holding, look, pipes, tables
from muster.cli.printing import As, Output, fail
from muster.cli.running import Context, Job, Kubeconfig, Namespace, Queues, run
from muster.cli.settings import Settings, misspelt


class _Commands(typer.core.TyperGroup):
    """All commands. A refused value is told without pydantic's word for who refused it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _told(error.message)
            raise


def _told(message: str) -> str:
    """What pydantic says of a value that one of our own checks has refused."""
    return message.removeprefix("Value error, ")


app = typer.Typer(
    cls=_Commands,
    help="Muster: gangs of GPUs, trained together. Installed as kubectl-muster, too: kubectl muster status JOB.",
    epilog="Exit codes: 0 done; 1 the job has failed, or a check has found something; 2 it could not be done, and "
    "stderr says why; 130 interrupted; 141 whoever read has left.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(cost.app, name="cost")
app.add_typer(cost.prices_app, name="prices")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _everywhere(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    for talkative in ("kopf", "alembic"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor").setLevel(logging.CRITICAL)  # what it raises is told by whoever runs it


@app.command()
def operator(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the leadership Lease.")] = None,
    runtime_image: Annotated[str | None, typer.Option(help="Image that brings the launcher into pods.")] = None,
    priority_class: Annotated[str | None, typer.Option(help="PriorityClass of training pods; '' for none.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of probes, metrics and API; 0 takes a free one.")] = None,
) -> None:
    """Run the operator, in the cluster or outside it.

    Each option can also be given as MUSTER_OPERATOR_<NAME>. The chart runs it; by hand, with a kubeconfig:

    \b
      muster operator --runtime-image localhost/muster/runtime:local
    """
    from muster.controllers.process import Operator

    given: dict[str, Any] = {
        "kubeconfig": kubeconfig,
        "context": context,
        "namespace": namespace,
        "runtime_image": runtime_image,
        "priority_class": priority_class,
        "http_port": http_port,
    }
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            name, *within = (str(part) for part in problem["loc"])
            option = f"--{name.replace('_', '-')}, " if name in given else ""
            where = ".".join((f"{option}MUSTER_OPERATOR_{name.upper()}", *within))
            fail(f"{where}: {_told(problem['msg'])}")
    except SettingsError as error:
        fail(f"a variable MUSTER_OPERATOR_* is no JSON: {error}: {error.__cause__}; see docs/reference/chart.md")
    if not settings.runtime_image:
        fail(
            "no runtime image: give --runtime-image (or MUSTER_OPERATOR_RUNTIME_IMAGE), the image built from "
            "images/runtime/Containerfile"
        )
    _log(settings)
    for told in misspelt(os.environ):
        logging.getLogger(__name__).warning(told)

    async def serve() -> int:
        return await Operator(settings).run()

    raise typer.Exit(
        run(serve(), "; choose another port with --http-port (MUSTER_OPERATOR_HTTP_PORT), 0 takes a free one")
    )


@app.command()
def status(
    job: Job,
    namespace: Namespace = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay, until the job has ended.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """One job: why it waits, how far it is, where it runs.

    With --watch the screen stays until the job has ended; into a pipe it writes a line whenever something changes.

    \b
      muster status llama-8b -n research --watch
    """
    raise typer.Exit(run(look.status(job, namespace, watch=watch, kubeconfig=kubeconfig, context=context)))


@app.command()
def explain(
    job: Job,
    namespace: Namespace = None,
    output: As = Output.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Why a job is where it is, what follows and what helps.

    With the last failure and its traceback, where the time went, and the job's history. JSON has, as waiting, what the
    job lacks, who is ahead and what change would start it (docs/api.md).

    \b
      muster explain llama-8b -n research
      muster explain llama-8b -o json | jq '.waiting.changes'
    """
    raise typer.Exit(run(explaining.explain(job, namespace, output, kubeconfig=kubeconfig, context=context)))


for command in gang.COMMANDS:
    app.command()(command)


@app.command()
def jobs(
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="All namespaces, as without --namespace.")
    ] = False,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="Only this queue and those below it: who holds its quota, then who waits."),
    ] = None,
    output: As = Output.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """All jobs: phase, progress and why they wait.

    JSON has the fields of /v1/jobs (docs/api.md).

    \b
      muster jobs --queue vision
      muster jobs -o json | jq -r '.[] | select(.phase == "Queued") | .name'
    """
    if everywhere and namespace is not None:
        fail("give either --all-namespaces or --namespace")
    raise typer.Exit(run(tables.jobs(namespace, queue, output, kubeconfig=kubeconfig, context=context)))


@app.command()
def queues(output: As = Output.TABLE, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """All queues: what they use of their quota, and borrow.

    JSON has the fields of /v1/queues (docs/api.md).

    \b
      muster queues
    """
    raise typer.Exit(run(tables.queues(output, kubeconfig=kubeconfig, context=context)))


@app.command()
def hold(
    queue: Queues,
    drain: Annotated[
        bool, typer.Option("--drain", help="Also have what runs save a checkpoint, stop and wait.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Let nothing new start in queues, and in those below them.

    What runs goes on; with --drain it makes room, too. The same as spec.stopPolicy.

    \b
      muster hold research
      muster hold research vision --drain
    """
    policy = StopPolicy.HOLD_AND_DRAIN if drain else StopPolicy.HOLD
    raise typer.Exit(run(holding.stop(queue, policy, kubeconfig=kubeconfig, context=context)))


@app.command()
def release(queue: Queues, kubeconfig: Kubeconfig = None, context: Context = None) -> None:
    """Let jobs start again in queues that are held or drained.

    \b
      muster release research
    """
    raise typer.Exit(run(holding.stop(queue, StopPolicy.NONE, kubeconfig=kubeconfig, context=context)))


@app.command()
def simulate(
    cluster: Annotated[Path | None, typer.Argument(help="YAML file of nodes, queues, costs and faults.")] = None,
    trace: Annotated[Path | None, typer.Argument(help="CSV file of jobs.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="fifo, easy, muster, or muster-no-PART; may be given again.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of failures and reclaims, or of the trace that is made.", min=0)] = 1,
    interval: Annotated[float, typer.Option(help="Least seconds between two decisions, the same for all.")] = 60.0,
    output: As = Output.TABLE,
    plots: Annotated[Path | None, typer.Option(help="Folder to write SVG plots to.")] = None,
    make_trace: Annotated[Path | None, typer.Option(help="Write a synthetic trace to this file, and end.")] = None,
    jobs: Annotated[int, typer.Option(help="With --make-trace: how many.", min=1)] = 10_000,
    load: Annotated[float, typer.Option(help="With --make-trace: work over what the cluster could do.")] = 0.9,
) -> None:
    """What a policy would do to a trace of jobs.

    Replays the trace on a simulated cluster: the real planner beside FIFO and EASY backfill.

    \b
      muster simulate --make-trace trace.csv --jobs 2000
      muster simulate cluster.yaml trace.csv --policy easy --policy muster
    """
    from muster.cli import simulate as simulating
    from muster.simulate.errors import SimulationError

    try:
        if make_trace is not None:
            simulating.make_trace(make_trace, cluster, jobs, load, seed)
        elif cluster is None or trace is None:
            fail("give a cluster file and a trace: muster simulate CLUSTER.yaml TRACE.csv; --make-trace writes a trace")
        else:
            chosen = policy or ["fifo", "easy", "muster"]
            simulating.run(cluster, trace, chosen, seed, interval, output=output, plots=plots)
    except SimulationError as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}; name a place that can be written")


@app.command()
def crds() -> None:
    """Print the CRDs, for `kubectl apply -f -`.

    \b
      muster crds | kubectl apply --server-side -f -
    """
    from muster.api.crd import custom_resource_definition
    from muster.api.generate import to_yaml
    from muster.api.kinds import KINDS

    typer.echo("---\n".join(to_yaml(custom_resource_definition(kind)) for kind in KINDS), nl=False)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    with pipes.watched_streams():
        app()
