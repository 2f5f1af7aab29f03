"""Reads and writes OCI image archives (a tar of an OCI layout)."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from hack.cluster.errors import ClusterError

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def manifest_digests(archive: Path) -> dict[str, str]:
    """Image name -> manifest digest for every named image in the archive."""
    try:
        with tarfile.open(archive) as tar:
            handle = tar.extractfile("index.json")
            index = json.load(handle) if handle else {}
    except (tarfile.TarError, KeyError, FileNotFoundError, json.JSONDecodeError) as error:
        raise ClusterError(
            f"{archive} is no OCI archive ({error}): make one with `buildah push IMAGE oci-archive:FILE:NAME`"
        ) from error
    found = {}
    for manifest in index.get("manifests", []):
        annotations = manifest.get("annotations", {})
        name = annotations.get("io.containerd.image.name") or annotations.get("org.opencontainers.image.ref.name")
        if name and "/" in name:
            found[name] = manifest["digest"]
    if not found:
        raise ClusterError(
            f"{archive} names no image: give the full name when you make it, `buildah push IMAGE"
            f" oci-archive:{archive}:localhost/NAME:TAG`"
        )
    return found


def write_single_program(archive: Path, name: str, program: Path, architecture: str) -> None:
    """Writes an image that holds one static program, which it runs. The same program gives the same bytes."""
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = [layer, _json(config)]
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _descriptor(blobs[1], "application/vnd.oci.image.config.v1+json"),
        "layers": [_descriptor(layer, "application/vnd.oci.image.layer.v1.tar")],
    }
    blobs.append(_json(manifest))
    entry = _descriptor(blobs[2], _MANIFEST)
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    files = {f"blobs/sha256/{_digest(blob)[7:]}": (blob, 0o644) for blob in blobs}
    files["index.json"] = (_json({"schemaVersion": 2, "manifests": [entry]}), 0o644)
    files["oci-layout"] = (_json({"imageLayoutVersion": "1.0.0"}), 0o644)
    archive.write_bytes(_tar(files))


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _descriptor(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
