"""Kueue on the load of `bench/admission.py`, on the same API server: its own load generator, its own manager.

Kueue's sources come as a Go module and are built on this machine, into the cache. Its load generator and the manager of
its performance test are what its own `make run-tas-performance-scheduler` runs; only the limits to 50 requests a second
are lifted. The load in its module is the one that `bench/loads/tas.yaml` says in Muster's terms.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml
from hack.cluster.build import go_environment, go_program
from hack.cluster.paths import cache_root, locked
from hack.cluster.progress import Progress

from report import report
from testbed import control_plane, control_plane_processes, cpu_seconds, peak_mib, run, running

VERSION: Final = "v0.17.0"
MODULE: Final = f"sigs.k8s.io/kueue@{VERSION}"
TESTS: Final = "test/performance/scheduler"
LIMITS: Final = (("kubeConfig.QPS = 50", "kubeConfig.QPS = -1"), ("kubeConfig.Burst = 100", "kubeConfig.Burst = -1"))

NOTES: Final = {
    "kueue_wall_s": "from the first queue to the last queue's last change",
    "kueue_cpu_s": "processor time of Kueue's manager",
    "kueue_peak_mib": "its peak resident memory",
    "kueue_server_cpu_s": "API server and etcd",
    "kueue_generator_cpu_s": "its load generator",
    "kueue_wait_small_s": "mean from submit to admission",
    "kueue_wait_medium_s": "",
    "kueue_wait_large_s": "",
    "kueue_evictions": "of workloads that had been admitted",
    "kueue_unfinished": "",
}


def build(progress: Progress) -> Path:
    """The folder of Kueue's sources with `minimalkueue` and `runner` built in it. Raises ClusterError."""
    folder = cache_root() / "src" / f"kueue-{VERSION}"
    with locked(folder.with_suffix(".lock")):
        if (folder / "built").exists():
            return folder
        with progress.part(f"build Kueue {VERSION}"):
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, go_program(progress))
        (folder / "built").touch()
    return folder


def _build(folder: Path, go: Path) -> None:
    environment = go_environment(go)
    with tempfile.TemporaryDirectory() as elsewhere:  # in a module's own folder Go would look for it there
        told = subprocess.run(
            [go, "mod", "download", "-json", MODULE], cwd=elsewhere, env=environment, check=True, capture_output=True
        )
    shutil.copytree(json.loads(told.stdout)["Dir"], folder, copy_function=shutil.copyfile)
    for path in [folder, *folder.rglob("*/")]:
        path.chmod(0o755)  # Go's cache is read-only
    main = folder / TESTS / "minimalkueue" / "main.go"
    text = main.read_text()
    for old, new in LIMITS:
        if old not in text:
            raise SystemExit(f"{main} does not say {old!r}, so its limits can't be lifted")
        text = text.replace(old, new)
    main.write_text(text)
    for program in ("minimalkueue", "runner"):
        command = [str(go), "build", "-o", f"built-{program}", f"./{TESTS}/{program}"]
        subprocess.run(command, cwd=folder, env=environment, check=True)


def measure(scale: float, timeout: float, folder: Path) -> dict[str, float]:
    """One run on an API server of its own; `folder` takes its logs."""
    source = build(Progress(quiet=False))
    config = yaml.safe_load((source / TESTS / "configs" / "tas" / "generator.yaml").read_text())
    workloads = _scaled(config, scale)
    (folder / "generator.yaml").write_text(yaml.safe_dump(config))
    for told in ("summary.yaml", "wlStates.csv"):  # of an earlier run, for which this one would be taken
        (folder / told).unlink(missing_ok=True)
    with control_plane(kwok_nodes=0) as cluster:
        run(cluster, "apply", "--server-side", "-f", str(source / "config" / "components" / "crd" / "bases"))
        run(cluster, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        server = control_plane_processes(cluster, controllers=False)
        environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
        manager = [str(source / "built-minimalkueue"), "--enableTAS", "--zap-log-level=error"]
        with running(manager, environment, folder / "kueue.log") as kueue:
            before = {one.pid: cpu_seconds(one.pid) for one in server}
            limits = ["--qps=1000", "--burst=2000", f"--timeout={timeout:.0f}s"]
            of_load = ["-o", str(folder), "--generatorConfig", str(folder / "generator.yaml")]
            load = [str(source / "built-runner"), *of_load, *limits]
            with running(load, environment, folder / "runner.log") as runner:
                _wait(folder / "summary.yaml", runner, kueue, timeout + 60)
                figures = {
                    "kueue_cpu_s": cpu_seconds(kueue.pid),
                    "kueue_peak_mib": peak_mib(kueue.pid),
                    "kueue_server_cpu_s": sum(cpu_seconds(one.pid) - before[one.pid] for one in server),
                    "kueue_generator_cpu_s": cpu_seconds(runner.pid),
                }
                runner.kill()  # it would delete its 15,000 objects one by one
    return _summary(yaml.safe_load((folder / "summary.yaml").read_text()), workloads) | figures


def _scaled(config: dict[str, Any], scale: float) -> int:
    """Takes `scale` of the jobs in each set (rounded up), as `load.read` does; how many there are in all."""
    found = 0
    for cohort in config["cohorts"]:
        for queues in cohort["queuesSets"]:
            for one in queues["workloadsSets"]:
                one["count"] = math.ceil(one["count"] * scale)
                found += cohort["count"] * queues["count"] * one["count"]
    return found


def _wait(summary: Path, runner: subprocess.Popen[bytes], kueue: subprocess.Popen[bytes], timeout: float) -> None:
    """Until the generator has seen its last job end. It then writes the summary, after it the tables."""
    deadline = time.monotonic() + timeout
    while not summary.exists() or not summary.with_name("wlStates.csv").exists():
        if runner.poll() is not None or kueue.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"Kueue's run did not end well; see {summary.parent}")
        time.sleep(0.2)


def _summary(raw: dict[str, Any], workloads: int) -> dict[str, float]:
    moments = list(raw["clusterQueueClasses"].values())
    begins = min(datetime.fromisoformat(one["firstEventTime"]) for one in moments)
    ends = max(datetime.fromisoformat(one["lastEventTime"]) for one in moments)
    classes = raw["workloadClasses"]
    figures = {"kueue_wall_s": (ends - begins).total_seconds()}
    for size in ("small", "medium", "large"):
        of_size = [one for name, one in classes.items() if name.startswith(size)]
        waits = sum(one["averageTimeToAdmissionMs"] * one["count"] for one in of_size)
        figures[f"kueue_wait_{size}_s"] = waits / sum(one["count"] for one in of_size) / 1e3
    figures["kueue_evictions"] = sum(one["totalEvictions"] for one in classes.values())
    figures["kueue_unfinished"] = workloads - sum(one["count"] for one in classes.values())
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="this part of the jobs (default 1)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds after which the run is given up")
    parser.add_argument("--logs", type=Path, help="keep its logs and tables in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = options.logs or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        figures = measure(options.scale, options.timeout, kept)
    return 0 if report("kueue", figures, {}, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
