"""What is remembered of each cluster, written before the thing it tells of is made."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import secrets
import subprocess
from dataclasses import asdict
from pathlib import Path

from hack.cluster.errors import ClusterError
from hack.cluster.paths import RUN_ROOT, cache_root, locked, state_root, write_atomically
from hack.cluster.plan import SLOTS, Addresses, Options, Site

# Folders whose paths kubelet and the CNI library do not let us choose. Each node mounts its own over them, in its own
# mount namespace; on the host they are empty mount points, removed with the last cluster.
MOUNT_POINTS = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers")


def boot_id() -> str:
    """Changes with each boot: nothing that ran before it can still run."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def directory_of(name: str) -> Path:
    return state_root() / name


def create(options: Options) -> Site:
    """Takes a free slot and writes the state of a new cluster."""
    directory = directory_of(options.name)
    directory.mkdir(parents=True, mode=0o700)
    with locked(_shared_lock()):
        slot = _claim_slot(directory)
    site = Site(options, slot, directory, _new_secrets(options))
    save(site, phase="starting")
    return site


def _new_secrets(options: Options) -> dict[str, str]:
    identities = ["admin", "kube-scheduler", "kube-controller-manager", "kube-proxy", "coredns", "kwok"]
    tokens = {name: secrets.token_hex(16) for name in [*identities, *options.node_names]}
    return {**tokens, "s3-access-key": "muster", "s3-secret-key": secrets.token_hex(16)}


def save(site: Site, phase: str) -> None:
    """Phases: starting, ready, stopping."""
    document = {
        "phase": phase,
        "boot": boot_id(),
        "slot": site.slot,
        "options": asdict(site.options),
        "secrets": site.secrets,
    }
    write_atomically(site.directory / "state.json", json.dumps(document, indent=1))


def load(name: str) -> tuple[Site, str] | None:
    """The cluster of that name and its phase, or None. A state that cannot be read is a crash's: phase `broken`."""
    directory = directory_of(name)
    if not directory.exists():
        return None
    try:
        document = json.loads((directory / "state.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return Site(Options(name=name), _slot_claimed_by(directory), directory), "broken"
    site = Site(Options(**document["options"]), document["slot"], directory, document["secrets"])
    return site, document["phase"] if document["boot"] == boot_id() else "broken"


def names() -> list[str]:
    """Every cluster that has a state, whole or not."""
    root = state_root()
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.exists() else []


def require(name: str) -> Site:
    """The running cluster of that name; raises ClusterError when there is none."""
    known = load(name)
    if known is None:
        others = f" (there are: {', '.join(names())})" if names() else ""
        mend = f"type `.venv/bin/python -m hack.cluster up --name {name}`, or give --name"
        raise ClusterError(f"no cluster `{name}` is up{others}: {mend}")
    site, phase = known
    if phase != "ready":
        mend = f"run `.venv/bin/python -m hack.cluster down --name {name}`, then `up`"
        raise ClusterError(f"cluster `{name}` is {phase}: {mend}")
    return site


# ---------------------------------------------------------------------------------------------------------- slots


def _slot_file(slot: int) -> Path:
    return RUN_ROOT / f"slot-{slot}"


def _claim_slot(directory: Path) -> int:
    routes = _routed_networks()
    for slot in range(SLOTS):
        addresses = Addresses(slot)
        wanted = [ipaddress.ip_network(addresses.pod_cidr), ipaddress.ip_network(addresses.service_cidr)]
        if any(route.overlaps(network) for route in routes for network in wanted):
            continue
        if _claim(slot, directory):
            return slot
    raise ClusterError(
        f"all {SLOTS} cluster slots are taken or their networks (10.200.0.0 to 10.231.255.255) are routed elsewhere:"
        " take one down with `.venv/bin/python -m hack.cluster down --all`"
    )


def _claim(slot: int, directory: Path) -> bool:
    _drop_stale_claim(slot)
    RUN_ROOT.mkdir(parents=True, exist_ok=True)
    try:
        with _slot_file(slot).open("x") as handle:
            handle.write(f"{boot_id()}\n{directory}\n")
            return True
    except FileExistsError:
        return False


def _drop_stale_claim(slot: int) -> None:
    with contextlib.suppress(FileNotFoundError, ValueError):
        boot, directory = _slot_file(slot).read_text().splitlines()
        if boot != boot_id() or not Path(directory).exists():
            _slot_file(slot).unlink()


def _slot_claimed_by(directory: Path) -> int:
    return next((slot for slot in range(SLOTS) if holds_slot(directory, slot)), -1)


def holds_slot(directory: Path, slot: int) -> bool:
    """Whether the slot is this cluster's, so that what bears its number may be removed."""
    try:
        return _slot_file(slot).read_text().splitlines() == [boot_id(), str(directory)]
    except FileNotFoundError:
        return False


def release_slot(directory: Path, slot: int) -> None:
    """Gives the slot back; with the last one go the folders that were made for all."""
    with locked(_shared_lock()):
        if holds_slot(directory, slot):
            _slot_file(slot).unlink()
        _remove_shared_folders()


def _shared_lock() -> Path:
    """Held while a cluster makes or removes what all clusters share."""
    return cache_root() / "locks" / "slots.lock"


def _remove_shared_folders() -> None:
    if not list(RUN_ROOT.glob("slot-*")):
        made = RUN_ROOT / "mount-points"
        for mount_point in made.read_text().splitlines() if made.exists() else ():
            with contextlib.suppress(OSError):  # somebody else uses it now
                Path(mount_point).rmdir()
        made.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            RUN_ROOT.rmdir()


def ensure_mount_points() -> None:
    """Makes those of MOUNT_POINTS that the host lacks, and remembers that they are ours."""
    with locked(_shared_lock()):
        missing = [mount_point for mount_point in MOUNT_POINTS if not Path(mount_point).exists()]
        if missing:
            made = RUN_ROOT / "mount-points"
            known = made.read_text().splitlines() if made.exists() else []
            write_atomically(made, "\n".join([*known, *missing]) + "\n")
        for mount_point in missing:
            Path(mount_point).mkdir(parents=True, exist_ok=True)


def _routed_networks() -> list[ipaddress.IPv4Network]:
    output = subprocess.run(["ip", "-4", "route", "show", "table", "all"], capture_output=True, text=True).stdout
    networks = []
    for line in output.splitlines():
        words = [word for word in line.split() if word not in ("local", "broadcast", "unreachable", "blackhole")]
        with contextlib.suppress(ValueError):
            network = ipaddress.IPv4Network(words[0], strict=False)
            if network.prefixlen >= 12:  # a wider route is a default in disguise; ours is more specific
                networks.append(network)
    return networks
