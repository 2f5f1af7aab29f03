"""Random clusters for property tests, small enough to be checked by brute force."""

from __future__ import annotations

from hypothesis import strategies as st

from muster.scheduling.snapshot import NONE, Snapshot

from .cases import LEVELS, Job, Node, Queue, snapshot

_few = st.integers(0, 4)


@st.composite
def nodes(draw: st.DrawFn, at_most: int = 8) -> list[Node]:
    count = draw(st.integers(1, at_most))
    return [
        Node(
            f"node-{index}",
            block=draw(st.sampled_from(["a", "b", None])),
            rack=draw(st.sampled_from(["r0", "r1", "r2", None])),
            gpus=draw(st.sampled_from([0, 2, 4])),
            cores=draw(st.integers(1, 6)),
            pods=draw(st.integers(1, 6)),
            # More in use than there is: a node may be overdrawn.
            used_gpus=draw(_few),
            used_cores=draw(_few),
            used_port=draw(st.booleans()),
            fixed_cores=draw(st.integers(0, 1)),
            usable=draw(st.sampled_from([True, True, True, False])),
        )
        for index in range(count)
    ]


@st.composite
def queues(draw: st.DrawFn) -> list[Queue]:
    limit = st.sampled_from([None, 0, 2, 4, 6, 8, 12])
    return [
        Queue(
            f"queue-{index}",
            gpus=draw(limit),
            borrowing=draw(limit),
            lending=draw(limit),
            cohort=draw(st.sampled_from([NONE, 0, 0, 0, 1])),
            open=draw(st.sampled_from([True, True, True, False])),
            parent=draw(st.sampled_from([None, *(f"queue-{above}" for above in range(index))])),
            weight=draw(st.sampled_from([1.0, 1.0, 3.0])),
            used=draw(st.sampled_from([0.0, 0.0, 0.2])),
        )
        for index in range(draw(st.integers(1, 4)))
    ]


@st.composite
def job(draw: st.DrawFn, uid: str, queue_names: list[str], node_names: list[str]) -> Job:
    mode = draw(st.sampled_from(["required", "preferred", "unconstrained"]))
    level = draw(st.sampled_from(LEVELS))
    return Job(
        uid,
        workers=draw(st.integers(1, 6)),
        gpus=draw(st.sampled_from([0, 1, 2, 4])),
        cores=draw(st.integers(0, 3)),
        port=draw(st.sampled_from([False, False, True])),
        queue=draw(st.sampled_from(queue_names)),
        priority=draw(st.integers(0, 2)),
        submitted=float(draw(st.integers(0, 3))),
        required=level if mode == "required" else None,
        preferred=level if mode == "preferred" else None,
        only_on=draw(st.one_of(st.none(), st.lists(st.sampled_from(node_names), min_size=1, unique=True).map(tuple))),
        holding=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def worlds(draw: st.DrawFn, jobs_at_most: int = 8, nodes_at_most: int = 8) -> Snapshot:
    """A cluster in any state, also one where quota was lowered under use."""
    there, shares = draw(nodes(nodes_at_most)), draw(queues())
    count = draw(st.integers(1, jobs_at_most))
    names, hosts = [queue.name for queue in shares], [node.name for node in there]
    jobs = [draw(job(f"job-{index}", names, hosts)) for index in range(count)]
    return snapshot(there, jobs, shares)


@st.composite
def crowds(draw: st.DrawFn) -> Snapshot:
    """Many jobs that differ little and want the same few nodes and the same quota: who waits for whom matters."""
    there = [
        Node(f"node-{index}", rack=f"r{index // 2}", gpus=4, cores=4, used_gpus=draw(st.sampled_from([0, 0, 4])))
        for index in range(draw(st.integers(2, 6)))
    ]
    hosts = [node.name for node in there]
    quota = st.sampled_from([None, None, 4, 8, 12])
    shares = [
        Queue(
            f"queue-{index}",
            gpus=draw(quota),
            borrowing=draw(st.sampled_from([None, 0, 2, 4])),
            lending=draw(quota),
            cohort=0,
        )
        for index in range(draw(st.integers(1, 2)))
    ]
    jobs = [
        Job(
            f"job-{index}",
            workers=draw(st.integers(1, 4)),
            gpus=draw(st.sampled_from([0, 2, 4])),
            cores=draw(st.integers(1, 2)),
            queue=draw(st.sampled_from([queue.name for queue in shares])),
            required=draw(st.sampled_from([None, None, "rack"])),
            only_on=draw(st.sampled_from([None, None, tuple(hosts[:1]), tuple(hosts[1:])])),
            submitted=float(index),
        )
        for index in range(draw(st.integers(2, 8)))
    ]
    return snapshot(there, jobs, shares)


@st.composite
def shares(draw: st.DrawFn) -> Snapshot:
    """Room for everyone, so that quota alone decides; some use is there already."""
    limit = st.sampled_from([None, 0, 2, 4, 6])
    queues = [
        Queue(f"queue-{index}", draw(st.sampled_from([None, 0, 2, 4, 8])), draw(limit), draw(limit), cohort)
        for index, cohort in enumerate(draw(st.lists(st.sampled_from([0, 0, 0, NONE]), min_size=1, max_size=4)))
    ]
    jobs = [
        Job(
            f"job-{index:02}",
            gpus=draw(st.integers(1, 3)),
            queue=draw(st.sampled_from([queue.name for queue in queues])),
            holding=draw(st.sampled_from([False, False, False, True])),
        )
        for index in range(draw(st.integers(1, 12)))
    ]
    return snapshot([Node("large", gpus=1000)], jobs, queues)


def contended() -> st.SearchStrategy[Snapshot]:
    """Any cluster, or a crowded one."""
    return st.one_of(worlds(jobs_at_most=12), crowds(), crowds())


@st.composite
def trees(draw: st.DrawFn) -> Snapshot:
    """Queues below one another to any depth, and room for everyone, so that quota alone decides; some use is there."""
    limit = st.sampled_from([None, None, 0, 1, 2, 4])
    queues = [
        Queue(
            f"queue-{index}",
            gpus=draw(st.sampled_from([None, 0, 1, 2, 4, 8])),
            borrowing=draw(limit),
            lending=draw(limit),
            parent=draw(st.sampled_from([None, *(f"queue-{above}" for above in range(index))])),
            cohort=draw(st.sampled_from([NONE, 0])),
        )
        for index in range(draw(st.integers(1, 7)))
    ]
    jobs = [
        Job(
            f"job-{index:02}",
            workers=draw(st.integers(1, 3)),
            gpus=draw(st.integers(1, 3)),
            queue=draw(st.sampled_from([queue.name for queue in queues])),
            holding=draw(st.sampled_from([False, False, False, True])),
        )
        for index in range(draw(st.integers(1, 12)))
    ]
    return snapshot([Node("large", gpus=1000, cores=1000)], jobs, queues)
