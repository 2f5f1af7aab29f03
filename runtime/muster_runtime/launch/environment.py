"""The environment of a rank: the container's own, torchrun's variables and ours."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muster_protocol import env
from muster_protocol.messages import Release
from muster_runtime import vendored
from muster_runtime.launch import config as launch_config
from muster_runtime.launch.config import Config

LIB: Final = "MUSTER_LIB"
"""Set by `muster-launch`: the folder with nothing but muster_runtime and muster_protocol. Unset: installed by pip."""

LAUNCHER_ONLY: Final = (env.TOKEN, LIB, launch_config.BIND, launch_config.TERMINATION_LOG, env.MEMORY_TIER)


def for_rank(
    base: Mapping[str, str],
    config: Config,
    release: Release,
    run_dir: Path,
    local_rank: int,
    memory: Mapping[str, str],
) -> dict[str, str]:
    """The whole environment of one rank. The job's token stays with the launcher.

    `memory` is what it says of the rank's memory tier.
    """
    values = {name: value for name, value in base.items() if name not in LAUNCHER_ONLY}
    values |= {
        "RANK": str(config.rank(local_rank)),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(config.world_size),
        "LOCAL_WORLD_SIZE": str(config.processes),
        "GROUP_RANK": str(config.index),
        "GROUP_WORLD_SIZE": str(config.workers),
        "NODE_RANK": str(config.index),
        "ROLE_RANK": str(config.rank(local_rank)),
        "ROLE_WORLD_SIZE": str(config.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": release.master_addr,
        "MASTER_PORT": str(release.master_port),
        "TORCHELASTIC_RUN_ID": config.job,
        "TORCHELASTIC_RESTART_COUNT": str(max(0, release.incarnation - 1)),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "PYTHONUNBUFFERED": "1",
        env.RUN_DIR: str(run_dir),
        env.INCARNATION: str(release.incarnation),
        **memory,
    }
    if config.processes > 1:
        values.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    values |= library_path(base)
    values |= temporary_folder(run_dir)
    vendor = vendored.folder()
    if vendor is not None:
        values[vendored.FOLDER] = str(vendor)
    return values


def library_path(base: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH with the runtime on it, where pip hasn't installed it."""
    if not base.get(LIB):
        return {}
    return {"PYTHONPATH": base[LIB] + (":" + base["PYTHONPATH"] if base.get("PYTHONPATH") else "")}


def temporary_folder(run_dir: Path) -> dict[str, str]:
    """TMPDIR for the ranks where Python finds no folder by itself: on a read-only root, torch's import would fail."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return {"TMPDIR": str(run_dir)}
    return {}
