"""Names of the environment variables that the operator sets in a training pod.

The launcher reads them; ranks get them too, beside torchrun's own.
"""

from __future__ import annotations

from typing import Final

TORCHRUN: Final = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)
"""torchrun's own variables, which the launcher sets for each rank whatever the container has."""

JOB: Final = "MUSTER_JOB"
"""Name of the TrainingJob."""

NAMESPACE: Final = "MUSTER_NAMESPACE"

JOB_UID: Final = "MUSTER_JOB_UID"

GENERATION: Final = "MUSTER_GENERATION"
"""Counts the whole gang's placements, from 1."""

INDEX: Final = "MUSTER_INDEX"
"""This worker's index in the gang, from 0. Index 0 leads the gang."""

ATTEMPT: Final = "MUSTER_ATTEMPT"
"""Counts the replacements of this one index within a generation, from 0."""

WORKERS: Final = "MUSTER_WORKERS"
"""Number of workers (pods) in the gang."""

PROCESSES_PER_WORKER: Final = "MUSTER_PROCESSES_PER_WORKER"
"""Ranks in each pod; the world size is WORKERS x PROCESSES_PER_WORKER."""

LEADER_HOST: Final = "MUSTER_LEADER_HOST"
"""DNS name of index 0's pod, for first contact. Later addresses are pushed."""

PORT: Final = "MUSTER_PORT"
"""TCP port of every launcher's HTTP API."""

POD_NAME: Final = "MUSTER_POD_NAME"
POD_UID: Final = "MUSTER_POD_UID"
POD_IP: Final = "MUSTER_POD_IP"
NODE_NAME: Final = "MUSTER_NODE_NAME"

TOKEN: Final = "MUSTER_TOKEN"
"""The job's bearer token for the launchers' HTTP API, from the job's Secret."""

READY_TIMEOUT: Final = "MUSTER_READY_TIMEOUT"
"""Seconds that the barrier waits for the whole gang; 0 waits for ever."""

GRACE_SECONDS: Final = "MUSTER_GRACE_SECONDS"
"""The pod's terminationGracePeriodSeconds."""

STRATEGY: Final = "MUSTER_STRATEGY"
"""How `session.wrap` parallelises: none, ddp, fsdp or hsdp."""

CHECKPOINT_URI: Final = "MUSTER_CHECKPOINT_URI"
"""`s3://bucket/prefix`, or `file:///path` on a laptop. Unset: no checkpoints."""

CHECKPOINT_INTERVAL: Final = "MUSTER_CHECKPOINT_INTERVAL"
"""Seconds between checkpoints, or `auto`. Unset: only by steps, and at the end."""

CHECKPOINT_NODE_HOURS: Final = "MUSTER_CHECKPOINT_NODE_HOURS"
"""For `auto`: hours that one node runs between two failures, as the platform team knows its nodes."""

NODE_HOURS: Final = {"on-demand": 3700.0, "reserved": 3700.0, "spot": 24.0}
"""What is supposed where nobody says better, by kind of capacity. On demand and reserved: 6.5 failures per 1,000
node-days (A. Kokolis et al., HPCA '25). Spot: as long as a preemptible machine of Google's lives at most; it is taken
back more often where it is in demand, and the interval goes by the root only."""

CHECKPOINT_EVERY_STEPS: Final = "MUSTER_CHECKPOINT_EVERY_STEPS"
"""Steps between checkpoints."""

CHECKPOINT_KEEP_LAST: Final = "MUSTER_CHECKPOINT_KEEP_LAST"
"""How many of the newest committed checkpoints are kept."""

CHECKPOINT_KEEP_EVERY: Final = "MUSTER_CHECKPOINT_KEEP_EVERY"
"""Checkpoints at multiples of this many steps are kept for ever."""

CHECKPOINT_KEEP_SECONDS: Final = "MUSTER_CHECKPOINT_KEEP_SECONDS"
"""The first checkpoint of each such span of time is kept for ever."""

CHECKPOINT_KEEP_BEST: Final = "MUSTER_CHECKPOINT_KEEP_BEST"
"""`METRIC:min|max:COUNT`: so many checkpoints with the smallest or largest value of a metric are kept."""

CHECKPOINT_BLOCKING: Final = "MUSTER_CHECKPOINT_BLOCKING"
"""`1`: training waits until each checkpoint is committed. Unset or `0`: it goes on as soon as the state is copied."""

CHECKPOINT_MEMORY: Final = "MUSTER_CHECKPOINT_MEMORY"
"""Whether the newest checkpoint also stays in memory: `off`, `local`, `peer` (and a copy in another pod's), or `auto`
(peer where the gang lies on two nodes or more, and memory suffices; local where it suffices for that)."""

MEMORY_REQUEST: Final = "MUSTER_MEMORY_REQUEST"
"""Bytes of memory that the container requests, 0 where it requests none: what `auto` goes by where it has no limit.
Unset: not in a pod."""

MEMORY_TIER: Final = "MUSTER_MEMORY_TIER"
"""Set by the launcher for its ranks: descriptors of memory that outlives them (the data, two records, the claim)."""

MEMORY_PEER: Final = "MUSTER_MEMORY_PEER"
"""Set by the launcher for its ranks: bytes that a rank's share of another pod's copy takes already; or, where memory is
copied to no other pod, why."""

CHECKPOINT_FROM: Final = "MUSTER_CHECKPOINT_FROM"
"""`uri` or `uri@step` of another run to warm-start from when this job has no checkpoint of its own."""

CHECKPOINT_FROM_LOAD: Final = "MUSTER_CHECKPOINT_FROM_LOAD"
"""`all` or `model`."""

RESTARTS_IN_PLACE: Final = "MUSTER_RESTARTS_IN_PLACE"
"""How many crashes of the script are answered by starting the gang's processes again in the pods that they have.
Unset: none."""

MEMORY_RESTARTS_IN_PLACE: Final = "MUSTER_MEMORY_RESTARTS_IN_PLACE"
"""How many times that is done after a rank has asked for more memory than there is. Unset: as often as after
crashes."""

NETWORK_RESTARTS_IN_PLACE: Final = "MUSTER_NETWORK_RESTARTS_IN_PLACE"
"""How many times that is done after ranks have lost each other and none of them had failed. Unset: as often as after
crashes."""

REPLACE_SECONDS: Final = "MUSTER_REPLACE_SECONDS"
"""How long launchers wait in their pods for the others that were lost to be replaced. Unset or 0: they end at once."""

HANG_START: Final = "MUSTER_HANG_START"
"""Seconds, or `auto`: how long ranks may take to start, to join and for a loop's first step, before the gang counts as
hung. Unset or 0, here and in the three that follow: for ever."""

HANG_STEP: Final = "MUSTER_HANG_STEP"
"""The same of a step."""

HANG_EVALUATION: Final = "MUSTER_HANG_EVALUATION"
"""The same of an evaluation, and of what stands between two epochs."""

HANG_CHECKPOINT: Final = "MUSTER_HANG_CHECKPOINT"
"""The same of a save or a restore."""

NUMERICS: Final = "MUSTER_NUMERICS"
"""What follows a step whose loss or gradient norm isn't finite, or spikes: `skip`, `rollback` or `stop`. Unset: nobody
looks."""

NUMERICS_LOSS: Final = "MUSTER_NUMERICS_LOSS"
"""A loss of more than so many times its median is a spike. Unset, here and in the next: spikes are not looked for."""

NUMERICS_NORM: Final = "MUSTER_NUMERICS_NORM"
"""The same of the gradient's norm."""

NUMERICS_LIMIT: Final = "MUSTER_NUMERICS_LIMIT"
"""So many of such steps within 1,000 are answered; the next one ends the run."""

REACHED_STEP: Final = "MUSTER_REACHED_STEP"
"""Steps that the run had done when the pod was made, as far as the operator knew: those up to it are done again."""

PREFLIGHT: Final = "MUSTER_PREFLIGHT"
"""0: nodes are not looked at before the ranks start. Unset: they are."""

SLOWER_BY: Final = "MUSTER_SLOWER_BY"
"""Percent by which a rank's own work may be slower than the gang's median, before it is named; 0: it never is. Unset:
`DEFAULT_SLOWER_BY`."""
DEFAULT_SLOWER_BY: Final = 50

MAX_RUNTIME: Final = "MUSTER_MAX_RUNTIME"
"""Seconds that the job may still run. At its end a checkpoint is saved and the run ends."""

TRACKING_URI: Final = "MUSTER_TRACKING_URI"
"""Where the run's parameters and metrics go: `https://...` for MLflow, `wandb://ENTITY/PROJECT`, or `python://MODULE:NAME`
for a tracker of the script's own. Unset: nowhere."""

TRACKING_EXPERIMENT: Final = "MUSTER_TRACKING_EXPERIMENT"
"""What the run belongs to there. Unset: the job's namespace."""

TRACKING_RUN_NAME: Final = "MUSTER_TRACKING_RUN_NAME"
"""Unset: the job's name."""

TRACKING_TAGS: Final = "MUSTER_TRACKING_TAGS"
"""JSON object of names and texts, put on the run."""

S3_ENDPOINT: Final = "AWS_ENDPOINT_URL_S3"
"""Botocore's own variable; named here because the launcher's messages mention it."""

S3_ENCRYPTION: Final = "MUSTER_S3_ENCRYPTION"
"""`AES256` or `aws:kms`: what every object is written with. Unset: as the bucket wants it."""

S3_KMS_KEY: Final = "MUSTER_S3_KMS_KEY"
"""Id or ARN of the key for `aws:kms`. Unset: the account's own for S3."""

S3_CA_FILE: Final = "MUSTER_S3_CA_FILE"
"""File with the certificates that S3's own is checked by. Unset: botocore's, or AWS_CA_BUNDLE."""

S3_ADDRESSING: Final = "MUSTER_S3_ADDRESSING"
"""`path` or `virtual`: where the bucket's name stands. Unset: in the path where an endpoint is set."""

RUN_DIR: Final = "MUSTER_RUN_DIR"
"""Set by the launcher for its ranks: the folder of the control word and the report socket."""

INCARNATION: Final = "MUSTER_INCARNATION"
"""Set by the launcher for its ranks: counts every re-join or restart of processes, from 1."""

MOUNT_PATH: Final = "/muster"
"""Where the init container puts the runtime; an emptyDir."""

DEFAULT_PORT: Final = 29400
