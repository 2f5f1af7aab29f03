"""DistributedDataParallel whose gradients are summed in the same order before and after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster_runtime.pulse import Stage


class Pace(Protocol):
    """See `muster_runtime.pulse.Pulse`."""

    def shares(self, stage: Stage) -> None: ...
    def owns(self, stage: Stage) -> None: ...


class DataParallel(DistributedDataParallel):
    """DDP that looks like the model inside: its attributes, its state dict and its parameters' names."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    muster_forwards = 0
    """Calls of the model itself that can be trained on. Its methods don't count: DDP doesn't see those."""

    muster_compiled = False
    """Whether torch.compile has taken the calls over: were they counted, it would compile anew for each number."""

    muster_frozen: tuple[tuple[str, nn.Parameter], ...] = ()
    """What was frozen when DDP was made, by name: it doesn't average their gradients, should they be trained later."""

    muster_pace: ClassVar[Pace | None] = None
    """Told what of a step is this rank's own work. Before the model runs DDP may share out buffers, and from its end on
    the gradients are summed. One for the process: a model that holds it could not be copied."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            self.muster_compiled = True
        else:
            self.muster_forwards += torch.is_grad_enabled()
            if self.muster_pace is not None:
                self.muster_pace.shares(Stage.FORWARD)
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def _run_ddp_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or self.muster_pace is None:
            return super()._run_ddp_forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        self.muster_pace.owns(Stage.FORWARD)
        try:
            return super()._run_ddp_forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            self.muster_pace.shares(Stage.BACKWARD)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_buffers(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        # Asked by a module around this one (an EMA): the names must be those that its load_state_dict looks for.
        if args or kwargs.get("destination") is not None or kwargs.get("prefix"):
            return super().state_dict(*args, **kwargs)
        return self.module.state_dict(**kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)


def data_parallel(model: nn.Module, device: torch.device, options: dict[str, Any]) -> nn.Module:
    """`model` as DDP over all ranks. A model without trainable parameters (an EMA, a teacher) stays as it is."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    parallel = DataParallel(model, **{"device_ids": device_ids, **options})
    parallel.muster_frozen = tuple((name, p) for name, p in model.named_parameters() if not p.requires_grad)
    if not parallel.find_unused_parameters and not parallel.static_graph:
        _lay_out_buckets(parallel)
    return parallel


def _lay_out_buckets(parallel: DataParallel) -> None:
    """Gives the reducer its final buckets before the first step.

    DDP sums gradients in one bucket during the first backward pass and then lays out buckets anew, in the order in
    which the gradients arrived. Sums are grouped by bucket, so the first step after a resume would differ in its last
    bits from the same step of an uninterrupted run. A backward pass of zeros, with the gradients arriving in reverse
    order of the parameters (about the order of real ones), lets the reducer settle before any step.
    With unused parameters looked for, or a static graph, the reducer has other rules, and this isn't done.
    """
    parameters = [parameter for parameter in parallel.module.parameters() if parameter.requires_grad]
    sparse = {id(module.weight) for module in parallel.module.modules() if _has_sparse_gradients(module)}
    parallel.reducer.prepare_for_backward([])
    for parameter in reversed(parameters):
        used = parameter
        if id(parameter) in sparse:  # the reducer expects a sparse gradient
            used = nn.functional.embedding(torch.zeros(1, dtype=torch.long, device=used.device), parameter, sparse=True)
        (parameter.detach().new_zeros(()) * used).sum().backward()
    for parameter in parameters:
        parameter.grad = None
    parallel.reducer._rebuild_buckets()


def _has_sparse_gradients(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
