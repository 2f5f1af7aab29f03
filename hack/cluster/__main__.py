"""The command line: `python -m hack.cluster up | down | status | env | image | stop-node | ...`."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from hack.cluster import api, build, cache, packages, processes, state, versions
from hack.cluster.errors import ClusterError
from hack.cluster.plan import GPU_TYPES
from hack.cluster.progress import Progress, fail


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0 when it did what it says, 1 with one clear message when not, 130 when interrupted."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except ClusterError as error:
        fail(str(error))
        return 1
    except KeyboardInterrupt:
        fail("interrupted; what had been started was undone")
        return 130


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Undoing takes a few seconds; another signal must not cut it short.
    for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    raise KeyboardInterrupt


def _up(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, _interrupt)
    wanted = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(api.Options)}
    progress = Progress()
    cluster = api.up(api.Options(**wanted), progress)
    _prune(progress, beside=cluster.name)
    _print_summary(cluster, arguments.kwok_nodes)
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGINT, _interrupt)
    # Simulated nodes too: whoever prepares does not know yet which kinds of clusters will be asked for.
    progress = Progress()
    api.prepare(api.Options(kwok_nodes=1), progress)
    packages.ensure(versions.DEBIAN_DATABASE, progress)
    _prune(progress)
    return 0


def _prune(progress: Progress, beside: str = "") -> None:
    """Another cluster may be an older checkout's, and may have been up for long."""
    if not set(api.names()) - {beside}:
        for path in cache.prune(cache.current()):
            progress.say(f"  removed {path}: of another version, and not used for 30 days")


def _print_summary(cluster: api.Cluster, kwok: int) -> None:
    suffix = "" if cluster.name == "muster" else f" --name {cluster.name}"
    simulated = f", {kwok} simulated ones" if kwok else ""
    nodes = f"nodes {', '.join(cluster.nodes) or 'none'}{simulated}"
    lines = [f"cluster {cluster.name} is up: {cluster.api_server}, {nodes}"]
    if cluster.s3_endpoint:
        lines.append(f"S3 at {cluster.s3_endpoint}")
    lines.append(f'use it:   eval "$(.venv/bin/python -m hack.cluster env{suffix})" && kubectl get nodes')
    lines.append(f"end it:   .venv/bin/python -m hack.cluster down{suffix}")
    print("\n".join(lines))


def _down(arguments: argparse.Namespace) -> int:
    there, progress = api.names(), Progress()
    if not arguments.all and arguments.name not in there:
        others = f"; there {_listed(there)}" if there else ""
        print(f"no cluster {arguments.name} is up{others}")
    wanted = there if arguments.all else [name for name in there if name == arguments.name]
    for name in wanted:
        with progress.part(f"take cluster {name} down"):
            api.down(name)
    return 0


def _listed(names: Sequence[str]) -> str:
    return f"is {', '.join(names)}" if names else "is none"


def _status(arguments: argparse.Namespace) -> int:
    if not api.names():
        print("no cluster is up")
    for name in api.names():
        known = state.load(name)
        if known is None:
            continue
        site, phase = known
        print(f"{name}: {phase}, slot {site.slot}, {site.addresses.api_url}, files in {site.directory}")
        for process in processes.recorded(site.directory):
            print(f"  {process.name:32} {'running' if process.alive else 'ENDED':8} pid {process.pid}")
    return 0


def _env(arguments: argparse.Namespace) -> int:
    cluster = api.get(arguments.name)
    programs = {build.program(name).parent for name in ("kubectl", "helm") if build.program(name).exists()}
    print("\n".join(exports(cluster.environment(), sorted(programs), Path(sys.executable).parent)))
    return 0


def exports(environment: Mapping[str, str], programs: Iterable[Path], python: Path) -> Iterator[str]:
    """Lines for a shell: the environment, and PATH with the folders of kubectl and helm in front. The folder with
    `muster` comes last: its python is not to hide the shell's own."""
    for key, value in environment.items():
        yield f"export {key}={shlex.quote(value)}"
    for folder in programs:
        yield f'export PATH={shlex.quote(str(folder))}:"$PATH"'
    yield f'export PATH="$PATH":{shlex.quote(str(python))}'


def _image_import(arguments: argparse.Namespace) -> int:
    api.get(arguments.name).import_images([Path(name) for name in arguments.archives], Progress())
    return 0


def _image_build(arguments: argparse.Namespace) -> int:
    build_args = {}
    for text in arguments.build_arg:
        key, equals, value = text.partition("=")
        if not equals:
            raise ClusterError(f"--build-arg {text}: write NAME=VALUE")
        build_args[key] = value
    cluster = api.get(arguments.name)
    cluster.build_image(arguments.image, arguments.containerfile, arguments.context, build_args, Progress())
    return 0


def _stop_node(arguments: argparse.Namespace) -> int:
    api.get(arguments.name).stop_node(arguments.node)
    return 0


def _start_node(arguments: argparse.Namespace) -> int:
    api.get(arguments.name).start_node(arguments.node)
    return 0


def _stop_apiserver(arguments: argparse.Namespace) -> int:
    api.get(arguments.name).stop_apiserver()
    return 0


def _start_apiserver(arguments: argparse.Namespace) -> int:
    api.get(arguments.name).start_apiserver()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hack.cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--name", default="muster", help="which cluster (default: muster)")
        command.set_defaults(run=run)
        return command

    _add_up_options(add("up", "start a cluster", _up))
    add("prepare", "build and fetch all that a cluster needs, and start nothing", _prepare)
    down = add("down", "take a cluster away; nothing of it stays", _down)
    down.add_argument("--all", action="store_true", help="every cluster of this user")
    add("status", "list clusters and their processes", _status)
    add("env", "print shell exports: KUBECONFIG, PATH with kubectl and muster, S3 endpoint and credentials", _env)
    add("stop-node", "cut a node's power", _stop_node).add_argument("node")
    add("start-node", "power a stopped node on again", _start_node).add_argument("node")
    add("stop-apiserver", "stop kube-apiserver", _stop_apiserver)
    add("start-apiserver", "start kube-apiserver again", _start_apiserver)
    image = commands.add_parser("image", help="build or import images")
    commands = image.add_subparsers(required=True, metavar="ACTION")
    importing = add("import", "import OCI archives into every node", _image_import)
    importing.add_argument("archives", nargs="+", metavar="FILE")
    building = add("build", "build an image and import it into every node", _image_build)
    building.add_argument("image", metavar="NAME", help="full name with a tag, like localhost/me/train:1")
    building.add_argument("--containerfile", type=Path, required=True)
    building.add_argument("--context", type=Path, default=Path())
    building.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    return parser


def _add_up_options(parser: argparse.ArgumentParser) -> None:
    defaults = api.Options()
    add = parser.add_argument
    add("--nodes", type=int, default=defaults.nodes, help="real nodes (default: %(default)s)")
    add("--gpus", type=int, default=defaults.gpus, help="made-up GPUs a node (default: %(default)s)")
    add("--gpu-type", default=defaults.gpu_type, choices=sorted(GPU_TYPES), help="default: %(default)s")
    add("--kwok-nodes", type=int, default=0, help="simulated nodes besides (default: none)")
    add("--racks", type=int, default=1, help="racks that the real nodes are spread over (default: 1)")
    add("--control-plane-only", action="store_true", help="no real nodes, no DNS, no S3")
    add("--s3", action=argparse.BooleanOptionalAction, help="an S3 server (default: unless --control-plane-only)")
    add("--torch", action=argparse.BooleanOptionalAction, default=True, help="PyTorch at /opt/torch in containers")
    add("--audit-log", action="store_true", help="write who changed what to logs/audit.log")
    add("--feature-gates", default="", help="of API server, scheduler and controller manager")
    add("--runtime-config", default="", help="of the API server")


if __name__ == "__main__":
    sys.exit(main())
