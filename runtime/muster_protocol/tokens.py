"""The bearer token of a job's launchers.

Derived, not stored: HMAC-SHA256 of the job's UID under the operator's key. So the operator can write the job's Secret
and call the launchers later without ever reading a Secret.
"""

from __future__ import annotations

import hashlib
import hmac


def job_token(key: bytes, job_uid: str) -> str:
    """64 hex digits. `key` is the operator's, at least 16 bytes (ValueError otherwise)."""
    if len(key) < 16:
        raise ValueError("the operator's token key is shorter than 16 bytes; make one with `openssl rand -hex 32`")
    return hmac.new(key, job_uid.encode(), hashlib.sha256).hexdigest()


def same_token(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())
