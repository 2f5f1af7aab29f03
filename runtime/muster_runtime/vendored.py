"""The libraries that Muster brings for itself: boto3, prometheus-client, nvidia-ml-py and zlib-ng, in `/muster/vendor`.

They are put on `sys.path` only in processes that run no code of the user's: the launcher, and the storage process that
a rank starts by exec. A rank never calls `use`, so that no import of the user's resolves differently.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = "MUSTER_VENDOR"
"""Environment variable that names the folder. Unset: it is looked for beside the runtime, else pip installed it."""


def folder() -> Path | None:
    """Where the vendored libraries lie, or None when the runtime was installed by pip with its dependencies."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    beside = Path(__file__).resolve().parents[2] / "vendor"
    return beside if (beside / "boto3").is_dir() else None


def use() -> None:
    """Puts the vendored libraries before everything that is installed. Call it before importing any of them."""
    found = folder()
    if found is not None and str(found) not in sys.path:
        sys.path.insert(0, str(found))
