"""The launcher's HTTP API.

Every launcher serves it on `MUSTER_PORT`. All paths but `/metrics` and `/healthz` need the job's token, as
`Authorization: Bearer TOKEN` or as `X-Muster-Token: TOKEN` (the API server's pod proxy keeps Authorization for itself).
Bodies are JSON objects (`wire`), made and read by the dataclasses of `messages` and `launcher_status`. A launcher says
of which generation it is (`X-Muster-Generation`); another generation's answers 409, whatever it is asked: an address
may be another pod's by now.

    GET  /healthz            200 while the launcher lives
    GET  /metrics            Prometheus text
    GET  /v1/status          -> Status; from index 0 it speaks for the gang
    GET  /v1/membership      -> Membership
    PUT  /v1/membership      Membership -> 204; 409 when its incarnation is older than the held one
    POST /v1/join            Member -> Release; launchers call index 0 and wait there for the barrier;
                             202 when it is not complete after JOIN_HOLD_SECONDS: ask again at once;
                             403 for a pod UID outside the membership, 409 for another generation;
                             410 with Ended when the gang ended before it was complete
    POST /v1/stop            Stop -> 202; relayed to the whole gang by the launcher that gets it, and a relayed one that
                             comes late, of an older incarnation, is ignored; 403 as for /v1/restart
    POST /v1/heartbeat       Heartbeat -> GangState; every launcher calls index 0, by `heartbeat_seconds`
    POST /v1/ended           Ended -> GangState; a launcher tells index 0 that its ranks ended, and learns who was first
    POST /v1/restart         Restart -> 202; index 0 tells the others to end their ranks and to join again;
                             403 for a pod that was replaced, or lost and not let in again: what it says means nothing
    POST /v1/stacks          -> Examined; what this pod's ranks are at, asked by index 0 when the gang does not get on
    GET  /v1/stacks          -> Examined; the same for whoever asks, with nothing that follows
    POST /v1/profile         Profile -> Profiling with 202; ranks record their next steps. Of index 0 alone; 400 without
                             a place to store it, 409 while one is under way
    GET  /v1/profile         -> Profiling; how far this pod is with it
    POST /v1/save            -> SaveAsked with 202; the ranks save a checkpoint at their next step's end. Of index 0;
                             400 without a place to save to
    PUT  /v1/facts           Facts -> 204; what the operator knows of the job, for the run's tracker. Of index 0 alone;
                             404 where nothing is tracked
    PUT  /v1/reliability     Reliability -> 204; how often nodes fail, as the operator knows it by now. Of index 0 alone
    POST /v1/copy            Copy -> 204 when it is here already, else 101: its bytes follow on the same connection
    POST /v1/copy/fetch      Copy -> 101, and its bytes follow; 404 when it isn't here
"""

from __future__ import annotations

from typing import Final

TOKEN_HEADER: Final = "X-Muster-Token"
STATUS_PATH: Final = "/v1/status"
MEMBERSHIP_PATH: Final = "/v1/membership"
JOIN_PATH: Final = "/v1/join"
STOP_PATH: Final = "/v1/stop"
HEARTBEAT_PATH: Final = "/v1/heartbeat"
ENDED_PATH: Final = "/v1/ended"
RESTART_PATH: Final = "/v1/restart"
STACKS_PATH: Final = "/v1/stacks"
PROFILE_PATH: Final = "/v1/profile"
SAVE_PATH: Final = "/v1/save"
FACTS_PATH: Final = "/v1/facts"
RELIABILITY_PATH: Final = "/v1/reliability"
COPY_PATH: Final = "/v1/copy"
FETCH_PATH: Final = "/v1/copy/fetch"
METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/healthz"
RELAYED_HEADER: Final = "X-Muster-Relayed"
"""Set by index 0 on a stop that it relays, so that it isn't sent back."""

POD_HEADER: Final = "X-Muster-Pod"
"""The pod UID of the launcher that calls. The operator's calls are without it."""

GENERATION_HEADER: Final = "X-Muster-Generation"
"""Of the gang of the launcher that calls. The operator's calls are without it."""

JOIN_HOLD_SECONDS: Final = 20.0
"""How long index 0 keeps one call to the barrier open."""


def heartbeat_seconds(workers: int) -> float:
    """Time between two heartbeats: 2 s, more in gangs of over 1,000 workers, so that index 0 serves 500 a second."""
    return max(2.0, workers / 500)
