"""`python3 -m muster_runtime.install FOLDER`: the init container's work.

Copies the launcher, the runtime and its vendored libraries from this image into FOLDER, a volume that the training
container shares:

    bin/muster-launch   the training container's entry
    lib/                muster_runtime and muster_protocol, and nothing else: it is put on the ranks' PYTHONPATH
    vendor/             what the launcher and the storage process use for themselves
    run/                written by the launcher; open to any user, for the training image's is not known here
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

PARTS: Final = ("bin", "lib", "vendor")
_EVERYBODY: Final = 0o1777


def install(source: Path, target: Path) -> int:
    """Copies `source` into `target` and returns the number of files. May be run again over its own result."""
    missing = [part for part in PARTS if not (source / part).is_dir()]
    if missing:
        raise FileNotFoundError(f"{source} has no {', '.join(missing)}: this is not the muster runtime image")
    files = 0
    for part in PARTS:
        for folder, folders, names in os.walk(source / part):
            folders[:] = [name for name in folders if name != "__pycache__"]
            there = target / Path(folder).relative_to(source)
            there.mkdir(mode=0o755, parents=True, exist_ok=True)
            for name in names:
                shutil.copyfile(Path(folder) / name, there / name)
                files += 1
    (target / "bin" / "muster-launch").chmod(0o755)
    run = target / "run"
    run.mkdir(exist_ok=True)
    run.chmod(_EVERYBODY)
    return files


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python3 -m muster_runtime.install FOLDER", file=sys.stderr)
        return 2
    source, target, started = Path(__file__).resolve().parents[2], Path(sys.argv[1]), time.monotonic()
    try:
        files = install(source, target)
    except OSError as error:
        print(f"the runtime can't be copied from {source} to {target}: {error}", file=sys.stderr)
        return 1
    print(f"{files} files copied to {target} in {time.monotonic() - started:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
