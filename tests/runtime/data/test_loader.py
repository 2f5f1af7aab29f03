"""One order for every gang: which samples each rank reads, and what the dataset draws for them."""

from __future__ import annotations

import copy
import random
from collections import UserDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from muster_runtime.data.loader import Loader, to_device
from muster_runtime.data.order import BatchPlan, equal_part, microbatches

CPU = torch.device("cpu")


class Noisy(Dataset[Any]):
    """Index and a draw from each generator that people use."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.rand()), torch.rand(()).item()


def wrap(source: DataLoader[Any], rank: int = 0, parts: int = 1, seed: int = 5) -> Loader:
    return Loader(source, rank=rank, parts=parts, seed=seed, device=CPU, where="here.py:1")


def global_batches(make: Any, parts: int, epoch: int = 0, start: int = 0) -> list[Any]:
    """The gang's batches of an epoch: each rank's part, one after the other."""
    ranks = [list(wrap(make(), rank, parts).batches(epoch, start)) for rank in range(parts)]
    return [[torch.cat(column).tolist() for column in zip(*batch, strict=True)] for batch in zip(*ranks, strict=True)]


def noisy(workers: int = 0, **more: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=12, shuffle=True, num_workers=workers, **more)


GANGS = given(st.integers(1, 300), st.integers(1, 40), st.booleans(), st.integers(1, 8))


@GANGS
@settings(max_examples=300, deadline=None)
def test_equal_parts_cover_each_batch_in_order(samples: int, batch: int, drop_last: bool, parts: int) -> None:
    try:
        plan = BatchPlan(samples, batch, drop_last)
        plan.refuse_unequal(parts)
    except ValueError:
        rest = samples % batch
        assert batch % parts or (rest % parts and not drop_last) or (samples < batch and drop_last)
        return
    assert plan.is_equal(parts, None)
    seen = []
    for number in range(len(plan)):
        places = plan.places(number)
        shares = [equal_part(len(places), parts, part) for part in range(parts)]
        assert len({share.samples for share in shares}) == 1
        seen += [places[at] for share in shares for at in share.places]
    assert seen == list(range(samples - (samples % batch if drop_last else 0)))


@given(st.integers(1, 60), st.integers(1, 8), st.none() | st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_microbatches_cover_a_batch_in_order(size: int, parts: int, most: int | None) -> None:
    shares = [list(microbatches(size, parts, part, most)) for part in range(parts)]
    assert [at for share in shares for one in share for at in one.places if one.samples] == list(range(size))
    assert len({len(share) for share in shares}) == 1, "as many passes on every rank"
    for share in shares:
        assert [one.number for one in share] == list(range(share[0].of))
        assert [one.is_last for one in share] == [False] * (len(share) - 1) + [True]
        for one in share:
            assert one.total == size
            assert 1 <= len(one.places) <= (most or size), "never without a sample to pass"
            assert one.samples in (len(one.places), 0)
    counts = [sum(one.samples for one in share) for share in shares]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] <= 1
    plan = BatchPlan(3 * size, size, False)
    assert plan.is_equal(parts, most) == (len(set(counts)) == len(shares[0]) == 1)


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_every_gang_reads_the_same_samples_with_the_same_draws(parts: int) -> None:
    for epoch in (0, 1):
        assert global_batches(noisy, parts, epoch) == global_batches(noisy, 1, epoch)


def test_epochs_differ_and_each_has_every_sample_once() -> None:
    orders = [[i for batch in global_batches(noisy, 2, epoch) for i in batch[0]] for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert [sorted(order) for order in orders] == [list(range(48))] * 2


def test_a_start_in_the_middle_goes_on_with_the_same_batches() -> None:
    assert global_batches(noisy, 2, 1, start=3) == global_batches(noisy, 2, 1)[3:]


def test_workers_change_nothing() -> None:
    assert global_batches(lambda: noisy(workers=2), 1) == global_batches(noisy, 1)


def test_a_look_at_the_data_leaves_the_loops_persistent_workers_alone() -> None:
    """As in a loop over steps that shows an example now and then: it would begin the epoch anew each time, unseen."""
    loader = wrap(noisy(workers=1, persistent_workers=True))
    whole = [batch[0].tolist() for batch in loader]
    loop, seen = loader.endless(), []
    for _ in range(3):
        seen.append(next(loop)[0].tolist())
        loader.move_on()
        assert next(iter(loader))[0].tolist() == whole[0]
    assert seen == whole[:3]
    assert [batch[0].tolist() for batch in loader] == whole
    assert next(loop)[0].tolist() == whole[3]


def test_persistent_workers_follow_the_epochs() -> None:
    loader = wrap(noisy(workers=1, persistent_workers=True))
    plain = wrap(noisy())
    for epoch in (0, 1):
        got = [batch[0].tolist() for batch in loader.batches(epoch, 2)]
        assert got == [batch[0].tolist() for batch in plain.batches(epoch, 2)]


def test_reading_leaves_the_trainings_generators_alone() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = torch.rand(2).tolist(), random.random(), np.random.rand()
    for workers in (0, 1):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        for _ in wrap(noisy(workers=workers)).batches(0, 0):
            pass
        assert (torch.rand(2).tolist(), random.random(), np.random.rand()) == expected


def test_a_dataset_that_reads_many_at_once_is_asked_for_one_since_each_has_its_seed() -> None:
    class Many(Noisy):
        asked: list[int] = []  # noqa: RUF012 - counted over all copies

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.asked.append(len(indices))
            return [self[index] for index in indices]

    list(wrap(DataLoader(Many(), batch_size=12)).batches(0, 0))
    assert Many.asked == [1] * 48


class Shuffled(Sampler[int]):
    """Draws from a generator that nothing else has, and that goes on from pass to pass."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return 48

    def __iter__(self) -> Iterator[int]:
        order = list(range(48))
        self.generator.shuffle(order)
        return iter(order)


class Told(Sampler[int]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 48

    def __iter__(self) -> Iterator[int]:
        return iter([(place + self.epoch) % 48 for place in range(48)])


SAMPLERS = {
    "weighted": lambda: DataLoader(Noisy(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 48, 20)),
    "seeded by the user": lambda: DataLoader(
        Noisy(), batch_size=4, sampler=RandomSampler(range(48), generator=torch.Generator().manual_seed(9))
    ),
    "with replacement": lambda: DataLoader(Noisy(), batch_size=4, sampler=RandomSampler(range(48), replacement=True)),
    "batches": lambda: DataLoader(Noisy(), batch_sampler=BatchSampler(RandomSampler(range(48)), 4, drop_last=True)),
    "batches, seeded by the user": lambda: DataLoader(
        Noisy(),
        batch_sampler=BatchSampler(RandomSampler(range(48), generator=torch.Generator().manual_seed(9)), 4, True),
    ),
    "random of its own": lambda: DataLoader(Noisy(), batch_size=4, sampler=Shuffled(random.Random(9))),
    "numpy of its own": lambda: DataLoader(Noisy(), batch_size=4, sampler=Shuffled(np.random.default_rng(9))),
    "old numpy of its own": lambda: DataLoader(Noisy(), batch_size=4, sampler=Shuffled(np.random.RandomState(9))),
    "told the epoch": lambda: DataLoader(Noisy(), batch_sampler=BatchSampler(Told(), 4, False)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_the_users_are_the_same_on_every_rank_and_restart(name: str) -> None:
    make = SAMPLERS[name]
    whole = global_batches(make, 2, 1)
    assert [batch[0] for batch in whole] == [batch[0] for batch in global_batches(make, 1, 1)]
    assert global_batches(make, 2, 1, start=2) == whole[2:]
    assert whole != global_batches(make, 2, 2)
    loader = wrap(make())
    passes = [[batch[0].tolist() for batch in loader.batches(epoch, 0)] for epoch in (0, 1)]
    assert passes[1] == [batch[0].tolist() for batch in wrap(make()).batches(1, 0)], (
        "a restart has made no earlier pass"
    )


def test_generators_of_samplers_are_left_as_they_were() -> None:
    for generator in (random.Random(9), np.random.RandomState(9)):
        before = copy.deepcopy(generator)
        list(wrap(DataLoader(Noisy(), batch_size=4, sampler=Shuffled(generator))).batches(0, 0))
        assert generator.randint(0, 1 << 30) == before.randint(0, 1 << 30)


class Wrong(Told):
    """Its length isn't what it gives."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


@pytest.mark.parametrize(
    "source",
    [
        lambda: DataLoader(Noisy(), batch_size=4, sampler=Wrong()),
        lambda: DataLoader(Noisy(), batch_sampler=BatchSampler(Wrong(), 4, False)),
    ],
    ids=["samples", "batches"],
)
def test_a_sampler_that_gives_less_than_its_length_is_told(source: Callable[[], Any]) -> None:
    """A loop over steps would look for the rest of the epoch for ever."""
    with pytest.raises(ValueError, match=r"has the length (48|12) and gave (10|3) in epoch 0.* \(here.py:1\)"):
        next(wrap(source()).endless())


class Ends(Dataset[Any]):
    def __init__(self, collate: bool = False) -> None:
        self.source, self.collate = iter(range(6)), collate

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index if self.collate else next(self.source)

    def collated(self, samples: list[int]) -> list[int]:
        return [next(self.source) for _ in samples] if self.collate else samples


@pytest.mark.parametrize("collate", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_at_its_end_in_a_dataset_is_no_end_of_the_epoch(collate: bool, workers: int) -> None:
    """A loop over steps would look for the rest of the epoch for ever."""
    dataset = Ends(collate)
    batches = wrap(DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=dataset.collated)).endless()
    next(batches)
    with pytest.raises(RuntimeError, match=r"(Ends, asked for sample 6,|collate_fn) raised StopIteration"):
        next(batches)


class Grows(Noisy):
    more = 0

    def __len__(self) -> int:
        return 48 + self.more


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("more", [-5, 5])
def test_a_dataset_that_changes_its_length_is_told(shuffle: bool, more: int) -> None:
    """An epoch would leave samples out without a word, or ask for those that aren't there."""
    dataset = Grows()
    loader = wrap(DataLoader(dataset, batch_size=4, shuffle=shuffle))
    dataset.more = more
    with pytest.raises(ValueError, match=rf"Sampler gives {48 + more} samples in epoch 0, and gave 48 .*here.py:1"):
        next(loader.endless())


def test_a_sampler_without_a_length_is_told() -> None:
    with pytest.raises(TypeError, match=r"here.py:1: the list_iterator has no length.*__len__"):
        wrap(DataLoader(Noisy(), batch_sampler=iter([[1, 2]])))


def test_a_loader_with_an_iteration_of_its_own_is_told() -> None:
    """What it does with its batches would be left out without a word."""

    class Scaled(DataLoader[Any]):
        def __iter__(self) -> Any:
            for (batch,) in super().__iter__():
                yield (batch * 100,)

    with pytest.raises(TypeError, match=r"here.py:1: Scaled has an __iter__ of its own, .* dataset or in collate_fn"):
        wrap(Scaled(TensorDataset(torch.ones(8)), batch_size=4))


def test_the_ranks_own_split_is_refused_inside_batches_too() -> None:
    batches = BatchSampler(DistributedSampler(range(48), 2, 0), 4, False)
    with pytest.raises(TypeError, match="leave the DistributedSampler out"):
        wrap(DataLoader(Noisy(), batch_sampler=batches))


class Growing:
    """One batch more each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 3 + self.epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[number] for number in range(len(self))])


def test_epochs_of_other_lengths_go_on_in_their_middle() -> None:
    first = wrap(DataLoader(Noisy(), batch_sampler=Growing()))
    batches = first.endless()
    for _ in range(3 + 2):
        next(batches)
        first.move_on()
    second = wrap(DataLoader(Noisy(), batch_sampler=Growing()))
    second.load_state_dict(first.state_dict())
    assert [batch[0].tolist() for batch in second.batches(second.epoch, second.position)] == [[2], [3]]


def test_epochs_of_other_lengths_go_on_between_two_of_them() -> None:
    first = wrap(DataLoader(Noisy(), batch_sampler=Growing()))
    batches = first.endless()
    for _ in range(3):
        next(batches)
        first.move_on()
    first.next_epoch()
    second = wrap(DataLoader(Noisy(), batch_sampler=Growing()))
    second.load_state_dict(first.state_dict())
    assert [batch[0].tolist() for batch in second.batches(second.epoch, second.position)] == [[0], [1], [2], [3]]


def test_a_batch_of_the_users_that_can_not_be_shared() -> None:
    batches = BatchSampler(RandomSampler(range(48)), 5, drop_last=True)
    told = r"made a batch of 5 samples, which 2 data-parallel ranks can't share equally.* \(here.py:1\)"
    with pytest.raises(ValueError, match=told):
        list(wrap(DataLoader(Noisy(), batch_sampler=batches), 0, 2).batches(0, 0))


@given(st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_the_position_is_one_number_that_can_be_restored(count: int) -> None:
    def take(loader: Loader, number: int) -> list[Any]:
        batches, found = loader.endless(), []
        for _ in range(number):
            found.append(next(batches)[0].tolist())
            loader.position += 1  # as the session does at the boundary
        return found

    assume(count >= 0)
    source = DataLoader(TensorDataset(torch.arange(30)), batch_size=6, shuffle=True)
    whole = take(wrap(source), count + 7)
    first = wrap(source)
    take(first, count)
    second = wrap(source, seed=99)
    second.load_state_dict(first.state_dict())
    assert take(second, 7) == whole[count:]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"shuffle": True}, {}, "whose samples come shuffled, and this loader's come as the dataset has them"),
        ({}, {"shuffle": True}, "come as the dataset has them, and this loader's come shuffled"),
        (
            {"sampler": WeightedRandomSampler([1.0] * 48, 48)},
            {"shuffle": True},
            "come by WeightedRandomSampler, and this loader's come shuffled",
        ),
        ({"sampler": list(range(48))}, {"shuffle": True}, "come by a sequence, and this loader's come shuffled"),
        (
            {"batch_sampler": BatchSampler(RandomSampler(range(48)), 12, drop_last=False)},
            {"batch_sampler": BatchSampler(range(48), 12, drop_last=False)},
            "come by BatchSampler of RandomSampler, and this loader's come by BatchSampler",
        ),
    ],
)
def test_an_epoch_does_not_go_on_in_another_order(before: dict[str, Any], after: dict[str, Any], told: str) -> None:
    def made(options: dict[str, Any]) -> Loader:
        size = {} if "batch_sampler" in options else {"batch_size": 12}
        return wrap(DataLoader(Noisy(), **size, **options))

    first, other = made(before), made(after)
    first.position = 2
    with pytest.raises(ValueError, match=rf"within epoch 0, .*{told} \(here.py:1\): some would be had twice"):
        other.load_state_dict(first.state_dict())
    old = {name: value for name, value in first.state_dict().items() if name != "order"}
    other.load_state_dict(old)  # of a Muster that did not say it
    assert other.position == 2
    for position in (0, 4):  # between two epochs it may change
        first.position = position
        other.load_state_dict(first.state_dict())
        assert other.position == position


def test_an_epoch_without_its_last_samples_is_over_before_them() -> None:
    first, other = (
        wrap(DataLoader(Noisy(), batch_size=13, drop_last=True, shuffle=shuffle)) for shuffle in (True, False)
    )
    first.position = 3  # 39 of 48 samples, and no batch is left
    other.load_state_dict(first.state_dict())
    assert other.is_over
    whole = wrap(DataLoader(Noisy(), batch_size=13))
    with pytest.raises(ValueError, match="within epoch 0, whose samples come shuffled"):
        whole.load_state_dict(first.state_dict())


@pytest.mark.parametrize(("drop_last", "batches"), [(False, 4), (True, 3)])
def test_a_dataset_may_grow_between_two_epochs(drop_last: bool, batches: int) -> None:
    def made(samples: int, batch: int) -> Loader:
        return wrap(DataLoader(TensorDataset(torch.arange(samples)), batch, shuffle=True, drop_last=drop_last))

    first = made(30, 8)
    first.epoch = 2
    for position, epoch in ((0, 2), (batches, 3)):
        first.position = position
        grown = made(42, 4)
        grown.load_state_dict(first.state_dict())
        assert "30 samples an epoch and batches of 8, this loader has 42 and 4" in grown.changed
        assert len(next(grown.endless())[0]) == 4
        assert (grown.epoch, grown.position) == (epoch, 0)
        again = made(42, 4)
        again.load_state_dict(grown.state_dict())
        assert not again.changed
    for position, left_out in ((1, ()), (0, [(3, 1)])):
        first.position = position
        first.leave_out(left_out)
        with pytest.raises(ValueError, match=r"may between two epochs, and the checkpoint stands within epoch 2"):
            made(42, 4).load_state_dict(first.state_dict())


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=9), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_what_is_left_out_is_had_by_nobody_and_all_else_once(left_out: set[tuple[int, int]], cut: int) -> None:
    """Three epochs of five batches, also where whole epochs are left out, and over a restart."""

    def take(loader: Loader, batches: list[tuple[int, int]]) -> list[Any]:
        coming, found = loader.endless(), []
        for place in batches:
            found.append(next(coming)[0].tolist())
            assert (loader.epoch, loader.number) == place
            assert loader.is_last == all((place[0], number) in left_out for number in range(place[1] + 1, 5))
            loader.move_on()
        return found

    source = DataLoader(TensorDataset(torch.arange(30)), batch_size=6, shuffle=True)
    kept = [(epoch, number) for epoch in range(3) for number in range(5) if (epoch, number) not in left_out]
    every = {
        (epoch, number): batch for epoch in range(3) for number, batch in enumerate(wrap(source).batches(epoch, 0))
    }
    first = wrap(source)
    first.leave_out(left_out)
    found = take(first, kept[:cut])
    second = wrap(source, seed=99)
    second.load_state_dict(first.state_dict())
    found += take(second, kept[cut:])
    assert found == [every[place][0].tolist() for place in kept]


def test_an_untracked_loader_gives_the_same_epoch_each_time_until_told_another() -> None:
    loader = wrap(noisy())
    first = [batch[0].tolist() for batch in loader]
    assert [batch[0].tolist() for batch in loader] == first
    assert len(loader) == 4
    loader.epoch = 1
    assert [batch[0].tolist() for batch in loader] != first


def test_batches_of_any_shape_are_moved() -> None:
    pair = namedtuple("pair", "a b")
    batch = {"x": torch.ones(1), "y": [pair(torch.ones(1), "text"), (1, torch.ones(1))]}
    meta = to_device(batch, torch.device("meta"))
    assert meta["x"].is_meta
    assert meta["y"][0].a.is_meta
    assert meta["y"][0].b == "text"
    assert meta["y"][1][1].is_meta


class Graph:
    """As of a library that has batches of its own."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> Graph:
        return Graph(self.nodes.to(device))


def test_batches_of_other_libraries_are_moved() -> None:
    """A tokenizer's padding gives a UserDict: it stayed where it was."""
    meta = torch.device("meta")
    padded = UserDict(ids=torch.ones(1))
    assert to_device(padded, meta)["ids"].is_meta
    assert not padded["ids"].is_meta
    lists = to_device(defaultdict(list, x=torch.ones(1)), meta)
    assert lists["x"].is_meta
    assert lists["y"] == []
    assert to_device([Graph(torch.ones(1))], meta)[0].nodes.is_meta
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(1)])
    assert to_device(packed, torch.device("cpu")).data.equal(packed.data)
