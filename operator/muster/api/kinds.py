"""Every kind of the API group, with its short name, printer columns and subresources."""

from __future__ import annotations

from typing import Final

from muster.api.crd import Column, Kind, Scale
from muster.api.topology import Topology
from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue

_AGE: Final = Column("Age", "date", ".metadata.creationTimestamp", "Time since the object was made")

TRAINING_JOB: Final = Kind(
    model=TrainingJob,
    plural="trainingjobs",
    short="tj",
    namespaced=True,
    columns=(
        Column("Phase", "string", ".status.phase", "Where the job stands, in one word"),
        Column("Queue", "string", ".spec.queue", "The TrainingQueue that it waits in"),
        Column("Workers", "string", ".status.workers", "Workers that it holds, like 6/8 where it asks for 8"),
        Column("GPUs", "integer", ".status.gpus", "GPUs that it asks for or holds"),
        Column("Step", "integer", ".status.progress.step", "Training steps done"),
        Column("Reason", "string", ".status.queue.reason", "What it waits for"),
        _AGE,
        Column("Position", "integer", ".status.queue.position", "Place in the order of its queue", wide=True),
        Column("Size", "integer", ".status.replicas", "Workers that it has now", wide=True),
        Column("Ready", "integer", ".status.ready", "Workers whose pods are ready", wide=True),
        Column("Nodes", "string", ".status.nodes", "Where it runs", wide=True),
        Column("Checkpoint", "integer", ".status.checkpoint.step", "Step of the last committed checkpoint", wide=True),
        Column("Saved", "date", ".status.checkpoint.committedAt", "Age of the last committed checkpoint", wide=True),
        Column(
            "Restarts",
            "integer",
            ".status.restarts",
            "Starts anew, with new pods: after failures, drains, lost nodes",
            wide=True,
        ),
        Column("Message", "string", ".status.queue.message", "What it waits for, in a sentence", wide=True),
    ),
    scale=Scale(".spec.workers.replicas", ".status.replicas", ".status.selector"),
)

TRAINING_QUEUE: Final = Kind(
    model=TrainingQueue,
    plural="trainingqueues",
    short="tq",
    namespaced=False,
    columns=(
        Column("Parent", "string", ".spec.parent", "The queue that it lends to and borrows from"),
        Column("Running", "integer", ".status.running", "Jobs that hold quota"),
        Column("Waiting", "integer", ".status.waiting", "Jobs that wait"),
        Column("GPUs", "string", ".status.gpus", "GPUs in use, like 16/32 where its quotas name 32"),
        Column("Share", "string", ".status.fairShare.share", "Its part of the cluster now"),
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "Whether it takes jobs"),
        _AGE,
        Column("Cohort", "string", ".spec.cohort", "Queues that it lends to and borrows from", wide=True),
        Column("Weight", "integer", ".spec.weight", "Its part beside its neighbours", wide=True),
        Column("Mean", "string", ".status.fairShare.mean", "Its part of the cluster in the past", wide=True),
        Column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason", "What is wrong with it", wide=True),
        Column("Message", "string", ".status.conditions[?(@.type=='Ready')].message", "The same in words", wide=True),
    ),
)

TOPOLOGY: Final = Kind(
    model=Topology,
    plural="topologies",
    short="topo",
    namespaced=False,
    columns=(
        Column("Widest", "string", ".spec.levels[0].name", "Name of the widest level"),
        Column("Nodes", "integer", ".status.nodes", "Nodes with the labels of every level"),
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "Whether all usable nodes do"),
        _AGE,
        Column("Message", "string", ".status.conditions[?(@.type=='Ready')].message", "Nodes that lack one", wide=True),
    ),
)

KINDS: Final = (TRAINING_JOB, TRAINING_QUEUE, TOPOLOGY)
