"""How a launcher ends, and what it writes into the pod's termination message.

The termination message is one JSON object of at most 4096 bytes, the limit that kubelet sets, so that the operator
learns why a pod ended without reading logs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, Final

from muster_protocol.goodput import Spent
from muster_protocol.numerics import Numerics
from muster_protocol.shortening import shortened
from muster_protocol.text import encodable

TERMINATION_MESSAGE_LIMIT: Final = 4096
TERMINATION_MESSAGE_PATH: Final = "/dev/termination-log"

EXIT_OK: Final = 0
EXIT_USER: Final = 1
EXIT_PREEMPTED: Final = 75
"""EX_TEMPFAIL: asked to stop, a checkpoint was committed where the script can, to be queued again."""
EXIT_CONFIG: Final = 78
"""EX_CONFIG: the run can't start as it is written (storage, image, command)."""
EXIT_INFRASTRUCTURE: Final = 70
"""EX_SOFTWARE: the gang or the launcher failed, not the user's code."""

RESTARTS_END: Final = 2**20
"""More than any pods can have seen: sums of them stay within the 32 bits of a status field."""


class Cause(str, Enum):
    """Why a launcher ended.

    `network`: ranks lost each other, and none of them failed by itself. `node`: the hardware below a rank is broken.
    `peer`: another pod of the gang ended first and this one followed. `max-runtime`: asked to stop because the run's
    time was over; like `preempted` the exit code is 75, but the run is not to be queued again. `hang`: ranks ran, but
    did not get on for longer than they may. `numerics`: losses or gradients are not sound, and the job wants no more of
    it.
    """

    SUCCEEDED = "succeeded"
    USER = "user"
    OUT_OF_MEMORY = "out-of-memory"
    HANG = "hang"
    NUMERICS = "numerics"
    NETWORK = "network"
    NODE = "node"
    CONFIG = "config"
    STORAGE = "storage"
    PREEMPTED = "preempted"
    MAX_RUNTIME = "max-runtime"
    RENDEZVOUS = "rendezvous"
    PEER = "peer"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class ExitFacts:
    """What is known about the end of one launcher.

    Attributes:
        cause: why it ended.
        exit_code: the launcher's own exit code.
        message: one sentence for people: what is wrong, where, how to mend it.
        rank: global rank of the process that failed first on this pod, or None.
        rank_exit_code: that process's exit code; negative for a signal, as `subprocess` gives it.
        traceback: the last lines of that process's Python traceback; without one, of its stderr, or else its stdout.
        step: last step that the pod's ranks reported, or else the one that they resumed from, or None.
        loss: the loss of that step as it was reported, a decimal string, or "".
        committed_step: step of the last committed checkpoint that the pod knows of, or None.
        incarnation: the incarnation of the processes that ended.
        restarts: how often the gang's processes were started again in these pods.
        failures: of those, how many followed a failure of the script; None: all.
        memory_failures: of `failures`, how many were for want of memory.
        signature: by which this failure is known again: its exception, without numbers, and place; or "".
        suspect: of a hang: the rank is one of those that held up the others.
        stored: bytes that all committed checkpoints under the run's uri take, from rank 0's pod; None: not told.
        alike: failures in a row that these pods have seen with this signature at this step, this one included.
        spent: where this launcher's time went, from index 0.
        numerics: steps that were not sound, as index 0 knows them; None for none.
        nothing_left: of a good end: the ranks trained nothing, since what they restored was of the run's end or beyond;
            `message` says so.
    """

    cause: Cause
    exit_code: int
    message: str
    rank: int | None = None
    rank_exit_code: int | None = None
    traceback: str = ""
    step: int | None = None
    committed_step: int | None = None
    incarnation: int = 0
    restarts: int = 0
    failures: int | None = None
    memory_failures: int = 0
    signature: str = ""
    alike: int = 1
    spent: Spent | None = None
    suspect: bool = False
    stored: int | None = None
    loss: str = ""
    nothing_left: bool = False
    numerics: Numerics | None = None


def encode(facts: ExitFacts) -> str:
    """The termination message for `facts`. The traceback, then the message, lose their middles to fit."""

    def dump(facts: ExitFacts) -> str:
        return json.dumps({"muster": 1, **asdict(facts), "cause": facts.cause.value})

    text = dump(facts)
    for field in ("traceback", "message"):
        whole: str = getattr(facts, field)
        most = len(whole)
        while most and len(text.encode()) > TERMINATION_MESSAGE_LIMIT:
            excess = len(text.encode()) - TERMINATION_MESSAGE_LIMIT
            most -= min(most, max(1, excess // 6))  # one character may take six bytes as \uXXXX
            kept: dict[str, Any] = {field: shortened(whole, most)}
            facts = replace(facts, **kept)
            text = dump(facts)
    return text


def decode(text: str) -> ExitFacts | None:
    """The facts in a termination message, or None when it isn't one of ours (the user may write there too)."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):  # four thousand brackets are no less somebody's last word
        return None
    if not isinstance(raw, dict) or raw.pop("muster", None) != 1:
        return None
    try:
        raw["cause"] = Cause(raw["cause"])
        known = {name: raw[name] for name in ExitFacts.__dataclass_fields__ if name in raw}
        texts = {name: encodable(value) for name, value in known.items() if type(value) is str}
        read = {"spent": Spent.read(known.get("spent")), "numerics": Numerics.read(known.get("numerics"))}
        facts = ExitFacts(**{**known, **texts, **read})
    except (KeyError, TypeError, ValueError):
        return None
    return facts if _plausible(facts) else None


def _plausible(facts: ExitFacts) -> bool:
    """Whether every field is of its type and range: user code may write to the termination message as well."""
    bounds = (
        (facts.rank, 0, 2**31),
        (facts.step, 0, 2**63),
        (facts.committed_step, 0, 2**63),
        (facts.stored, 0, 2**63),
        (facts.incarnation, 0, 2**63),
        (facts.restarts, 0, RESTARTS_END),
        (facts.failures, 0, RESTARTS_END),
        (facts.memory_failures, 0, RESTARTS_END),
        (facts.alike, 1, 2**31),
        (facts.exit_code, -(2**31), 2**31),
        (facts.rank_exit_code, -(2**31), 2**31),
    )
    return (
        None not in (facts.exit_code, facts.incarnation, facts.restarts, facts.memory_failures, facts.alike)
        and all(value is None or (type(value) is int and least <= value < end) for value, least, end in bounds)
        and isinstance(facts.message, str)
        and isinstance(facts.traceback, str)
        and isinstance(facts.signature, str)
        and isinstance(facts.loss, str)
        and isinstance(facts.suspect, bool)
        and isinstance(facts.nothing_left, bool)
    )
