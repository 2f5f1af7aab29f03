"""How a command runs: what all commands about a cluster are asked for, and the sentences for what goes wrong."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from muster.cli import completing
from muster.cli.printing import fail
from muster.cli.scene import NotThere
from muster.cluster.credentials import CredentialsError
from muster.cluster.errors import ApiError, ApiUnreachable

Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig; else KUBECONFIG or ~/.kube/config.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the TrainingJob.", autocompletion=completing.jobs)]
Queues = Annotated[
    list[str],
    typer.Argument(metavar="QUEUE", help="Names of TrainingQueues.", autocompletion=completing.queues),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the job; else the kubeconfig's.")
]

HINTS: Final = {
    401: "; sign in to the cluster anew, or give another --context",
    403: "; ask for the right to read it (docs/install.md, Rights)",
}
"""What helps, by the status with which the API server refuses."""


def run(work: Any, hint: str = "") -> int:
    """The exit code of `work`; errors that a user can meet become sentences. `hint` says what helps when the machine
    refuses something."""
    try:
        code: int = asyncio.run(work)
    except KeyboardInterrupt:
        return 130
    except (CredentialsError, NotThere) as error:
        fail(str(error))
    except ApiError as error:
        fail(f"the API server refused: {error.message or error}{HINTS.get(error.status, '')}")
    except ApiUnreachable as error:
        fail(f"{error}; check the address and the certificate authority in your kubeconfig, and that the cluster runs")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        fail(f"the cluster has an object that this version cannot read: {field}: {first['msg']}; upgrade muster")
    except OSError as error:
        fail(f"{error}{hint}")
    return code
