"""DDP that looks like the model inside, in a process group of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hack.needs_torch import SHARDS
from torch import nn
from torch.optim.swa_utils import AveragedModel

from muster_runtime.errors import UsageError
from muster_runtime.parallel.ddp import data_parallel
from muster_runtime.parallel.wrap import wrap_model, wrapped_at

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def wrap(model: nn.Module, strategy: str, *, ranks: int, precision: str = "auto") -> nn.Module:
    return wrap_model(
        model,
        strategy=strategy,
        device=CPU,
        world_size=ranks,
        ranks_per_worker=ranks,
        precision=precision,
        ddp={},
        fsdp={},
        where="train.py:3",
    )


def test_names_are_the_models_own() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    parallel = data_parallel(net, CPU, {})
    assert names(parallel) == names(net)
    assert [name for name, _ in parallel.named_buffers()] == [name for name, _ in net.named_buffers()]
    assert list(parallel.state_dict()) == list(net.state_dict())
    assert list(parallel.state_dict(keep_vars=True)) == list(net.state_dict())


def test_the_state_of_an_average_around_it_can_be_loaded() -> None:
    average = AveragedModel(data_parallel(nn.Linear(2, 2), CPU, {}))
    state = {name: value + 1 for name, value in average.state_dict().items()}
    assert set(names(average)) <= set(state)
    average.load_state_dict(state)
    for name, value in average.state_dict().items():
        assert torch.equal(value, state[name])


def test_sparse_embeddings_train() -> None:
    parallel = data_parallel(nn.Sequential(nn.Embedding(8, 3, sparse=True), nn.Linear(3, 1)), CPU, {})
    before = parallel.module[0].weight.detach().clone()
    assert all(parameter.grad is None for parameter in parallel.parameters())
    parallel(torch.tensor([1, 5])).sum().backward()
    torch.optim.SGD(parallel.parameters(), lr=1.0).step()
    changed = (parallel.module[0].weight != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == [1, 5]


def test_what_is_compiled_around_it_is_compiled_once() -> None:
    compiled = torch.compile(data_parallel(nn.Linear(2, 1), CPU, {}), backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            compiled(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("strategy", ["ddp", "none"])
def test_a_compiled_model_is_known_as_wrapped(strategy: str) -> None:
    compiled = torch.compile(nn.Linear(2, 1), backend="eager")
    wrapped = wrap(compiled, strategy, ranks=2)
    assert wrapped_at(wrapped) == "train.py:3"
    assert wrapped(torch.ones(1, 2)).shape == (1, 1)


def test_only_calls_that_can_be_trained_on_are_counted() -> None:
    parallel = data_parallel(nn.Linear(2, 1), CPU, {})
    with torch.no_grad():
        parallel(torch.ones(1, 2))
    assert parallel.muster_forwards == 0
    parallel(torch.ones(1, 2)).sum().backward()
    assert parallel.muster_forwards == 1
    torch.compile(parallel, backend="eager")(torch.ones(1, 2)).sum().backward()
    assert parallel.muster_compiled


@SHARDS
def test_a_sharded_model_computes_in_bf16_and_gives_fp32() -> None:
    seen: list[torch.dtype] = []
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)), nn.Linear(4, 1))
    blocks[1].register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    model = wrap(blocks, "fsdp", ranks=1, precision="bf16")
    output = model(torch.randn(8, 4))
    assert (output.dtype, seen) == (torch.float32, [torch.bfloat16])
    nn.functional.mse_loss(output, torch.randn(8, 1)).backward()
    assert {(p.dtype, p.grad.dtype) for p in model.parameters() if p.grad is not None} == {(torch.float32,) * 2}
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_torch_that_shards_on_gpus_only_is_told_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu.Stream, "record_event", raising=False)  # as up to torch 2.6
    told = r"train.py:3: strategy fsdp: torch \S+ shards models on GPUs only\. Take .* or strategy ddp"
    with pytest.raises(UsageError, match=told):
        wrap(nn.Linear(2, 2), "fsdp", ranks=1)
    wrap(nn.Linear(2, 2), "ddp", ranks=1)


@SHARDS
def test_a_torch_whose_gradients_would_be_sums_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_average(*given: object, **named: object) -> None:
        raise RuntimeError("Cannot use ReduceOp.AVG with Gloo")  # as `all_reduce` of torch 2.7 has it

    monkeypatch.setattr(dist, "reduce_scatter_tensor", lambda out, given, **named: out.fill_(2.0))  # and this one sums
    with pytest.raises(UsageError, match=r"train.py:3: strategy fsdp: torch \S+ does not average the gradients"):
        wrap(nn.Linear(2, 2), "fsdp", ranks=1)
    monkeypatch.undo()
    monkeypatch.setattr(dist, "all_reduce", no_average)
    with pytest.raises(UsageError, match=r"strategy hsdp: torch \S+ does not average the gradients"):
        wrap(nn.Linear(2, 2), "hsdp", ranks=1)
    monkeypatch.undo()
    wrap(nn.Linear(2, 2), "hsdp", ranks=1)
