"""Mistakes of a script that would cost it its state or its correctness, each told with the line to change."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from muster_protocol.manifest import may_be_tracked
from muster_runtime.checkpoint.tree import split
from muster_runtime.data.foreign import is_foreign
from muster_runtime.data.loader import Loader
from muster_runtime.errors import StateError, UsageError, caller
from muster_runtime.parallel.ddp import DataParallel
from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.replicas import sums, unsynchronised
from muster_runtime.parallel.wrap import unwrap, wrapped_at
from muster_runtime.session.progress import plain
from muster_runtime.session.tracking import Stateful, Tracked

Wrapped = tuple[weakref.ref[nn.Module], str]
"""A model that `session.wrap` was given, and the line where."""


def refuse_untrackable(name: str, thing: Any, tracked: Sequence[Tracked], where: str) -> None:
    """UsageError when `thing` cannot be tracked under this name."""
    if any(one.name == name for one in tracked):
        raise UsageError(f"{where}: {name!r} is tracked already; give the second object another name")
    if not may_be_tracked(name):
        raise UsageError(f"{where}: {name!r} can't be the name of a tracked object")
    # A copy of a wrapped model is none of the wrapped ones: so people begin an average of its weights.
    if isinstance(thing, DistributedDataParallel) and not isinstance(thing, DataParallel) and not wrapped_at(thing):
        raise UsageError(
            f"{where}: {name!r} is in DistributedDataParallel of your own; remove that line and use session.wrap"
        )
    if isinstance(thing, DistributedDataParallel) and isinstance(thing.module, DistributedDataParallel):
        raise UsageError(
            f"{where}: {name!r} is in DistributedDataParallel twice: session.wrap made it data-parallel at "
            f"{wrapped_at(thing)}; remove the other line"
        )
    if isinstance(thing, nn.Module) and any(isinstance(part, FullyShardedDataParallel) for part in thing.modules()):
        raise UsageError(
            f"{where}: {name!r} is in FullyShardedDataParallel of your own, whose shards no checkpoint takes; remove "
            "that line and use session.wrap, with strategy fsdp or hsdp"
        )
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(thing).__mro__):
        raise UsageError(
            f"{where}: {name!r} is a {type(thing).__name__}, of whose state each rank has a part that no checkpoint "
            "takes: use the optimizer that is inside it, and strategy fsdp or hsdp, which share out its state as well"
        )
    if isinstance(thing, DataLoader) and not is_foreign(thing):
        raise UsageError(f"{where}: {name!r} is a plain DataLoader; write {name} = session.wrap({name}) above")
    if not isinstance(thing, Stateful):
        raise UsageError(
            f"{where}: {name!r} (of {type(thing).__name__}) lacks state_dict() and load_state_dict(); add them"
        )


def refuse_unstorable(tracked: Sequence[Tracked]) -> None:
    """StateError when an object has a state that no checkpoint can hold: the first save would fail, perhaps an hour
    from now. A model has such in what a module keeps beside its tensors, an optimizer in the options of a group."""
    for t in tracked:
        if is_foreign(t.thing):
            continue
        try:
            split(t.name, t.state())
        except StateError as error:
            raise StateError(f"{t.where}: {error}") from None


def counted(name: str, total: Any, where: str) -> int:
    """A loop's total, which may be NumPy's or torch's. UsageError when it isn't a whole number, as what a command line
    or a variable gives isn't."""
    try:
        return operator.index(total)
    except TypeError:
        raise UsageError(
            f"{where}: session.{name}({total!r}): the total is a whole number; write int(...) around it"
        ) from None


def size(name: str, value: Any, where: str) -> int:
    """A number of samples, which may be NumPy's or torch's. UsageError when it is none: a quotient is a float."""
    try:
        found = operator.index(value)
    except TypeError:
        found = 0
    if found < 1:
        raise UsageError(f"{where}: {name}={value!r}: it is a whole number of 1 or more; a quotient is one by //")
    return found


def refuse_unreportable(values: Mapping[str, Any]) -> None:
    """UsageError when a metric isn't a number: the next save, which keeps them, would fail."""
    for name, value in values.items():
        if value is None:
            continue
        is_tensor = isinstance(value, torch.Tensor)
        if not hasattr(value, "__float__") or (is_tensor and (value.is_complex() or value.is_meta)):
            raise UsageError(f"{caller()}: session.report({name}={value!r}): a metric is a number, or a tensor of one")
        shape = getattr(value, "shape", ())  # a tensor's, or an array's of NumPy
        if math.prod(shape) != 1:
            raise UsageError(
                f"{caller()}: session.report({name}=...) has the shape {list(shape)}: a metric is a number, or a "
                "tensor of one; reduce it, say by .mean()"
            )
        if not is_tensor:  # whose number may be on its way
            _refuse_no_float(name, value)


def _refuse_no_float(name: str, value: Any) -> None:
    try:
        plain(value)
    except OverflowError:
        raise UsageError(
            f"{caller()}: session.report({name}=...): the number is beyond a float's range; report its logarithm"
        ) from None
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{caller()}: session.report({name}=...): a metric is a number, or a tensor of one, and this "
            f"{type(value).__name__} is none ({error})"
        ) from None


def refuse_uncountable(tokens: Any) -> None:
    """UsageError when a step's tokens are no count: one NaN is the rate of the whole gang."""
    if not 0 <= plain(tokens) < math.inf:  # of a tensor, too: it is read in this step anyway
        raise UsageError(f"{caller()}: session.report(tokens={tokens!r}): it is a number of 0 or more")


def refuse_untracked(tracked: Sequence[Tracked], wrapped: Sequence[Wrapped], loop: str) -> None:
    """UsageError when a model or a parameter that is trained is in no checkpoint."""
    models = [unwrap(t.thing) for t in tracked if isinstance(t.thing, nn.Module)]
    for reference, where in wrapped:
        model = reference()
        if model is None or any(model is known for known in models):
            continue
        if any(parameter.requires_grad for parameter in model.parameters()):
            raise UsageError(
                f"{loop}: the model that was wrapped at {where} isn't tracked, so a resume would lose it; "
                "add it to session.track(...)"
            )
    known_parameters = {id(parameter) for model in models for parameter in model.parameters()}
    for t in tracked:
        if not isinstance(t.thing, Optimizer):
            continue
        if any(id(p) not in known_parameters for group in t.thing.param_groups for p in group["params"]):
            raise UsageError(
                f"{t.where}: {t.name!r} has parameters that no tracked model has. Make it from the model that "
                "session.wrap gave, below that line, and track that model, too"
            )


def refuse_undriven(tracked: Sequence[Tracked], driver: Loader | None, total: int, loop: str) -> None:
    """A tracked loader that the loop doesn't drive never moves on, so a resume would begin its data anew."""
    for t in tracked:
        if isinstance(t.thing, Loader) and t.thing is not driver:
            raise UsageError(
                f"{loop}: {t.name!r}, tracked at {t.where}, isn't this loop's, so a resume would begin its "
                f"data anew; write session.steps({total}, {t.name}), or don't track it"
            )


def refuse_no_way_back(driver: Loader | None, saves: bool, loop: str) -> None:
    """UsageError where a run that is to go back and leave batches out couldn't."""
    if driver is None:
        raise UsageError(
            f"{loop}: spec.numerics.action is rollback, but the loop's batches don't come from a loader of the "
            "session's, so none could be left out: write session.steps(TOTAL, loader), or choose skip or stop"
        )
    if not saves:
        raise UsageError(
            f"{loop}: spec.numerics.action is rollback, but there is no checkpoint.uri to go back to: give one, or "
            "choose skip or stop"
        )


def refuse_hidden(*, guarded: bool, early: bool, elastic: bool) -> None:
    """Of an update that is captured into a CUDA graph: what goes wrong where its replays are seen by nobody.

    Args:
        guarded: gradients are judged before each update.
        early: a checkpoint may still be restored.
        elastic: batches come from `session.loader`.
    """
    if guarded:
        raise UsageError(
            f"{caller()}: spec.numerics (MUSTER_NUMERICS) looks at the gradients before each update, and an update "
            "inside a CUDA graph is never seen: capture the forward and backward pass alone "
            "(torch.cuda.make_graphed_callables), or leave numerics out"
        )
    if early:
        raise UsageError(
            f"{caller()}: an update is captured into a CUDA graph before session.steps(...) has begun, which may "
            "restore a checkpoint into other memory than the graph's: capture in the loop, after some steps"
        )
    if elastic:
        raise UsageError(
            f"{caller()}: session.backward weighs each microbatch by what the gang has of its batch, and a CUDA "
            "graph would replay one of these weights for ever: capture the forward pass alone "
            "(torch.cuda.make_graphed_callables)"
        )


def refuse_bypassed(optimizer: Optimizer, tracked: Sequence[Tracked], seen: dict[tuple[int, int], int]) -> None:
    """UsageError when gradients came about without DDP's forward: they would not be averaged over the ranks."""
    for t in tracked:
        if not isinstance(t.thing, DataParallel):
            continue
        _refuse_unfrozen(t, t.thing)
        if t.thing.muster_compiled:
            continue
        at, forwards = (id(optimizer), id(t.thing)), t.thing.muster_forwards
        before, seen[at] = seen.get(at, 0), forwards
        if forwards != before:
            continue
        trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
        if any(id(parameter) in trained for parameter in t.thing.parameters()):
            raise UsageError(
                f"{caller()}: {t.name!r} has gradients, but {t.name}(...) itself was not called since the last "
                "step. Methods of the model bypass DDP, so every rank would train a model of its own: do in "
                f"forward() what the method does, and call {t.name}(...)"
            )


def _refuse_unfrozen(tracked: Tracked, model: DataParallel) -> None:
    for name, parameter in model.muster_frozen:
        if parameter.grad is not None:
            raise UsageError(
                f"{caller()}: {tracked.name}.{name} has a gradient, but it was frozen when session.wrap made "
                f"{tracked.name!r} data-parallel at {wrapped_at(model)}, so it isn't averaged and every rank would "
                "train its own. Freeze it below that line, and give session.wrap ddp={'find_unused_parameters': True}"
            )


def refuse_unrelated(tracked: Sequence[Tracked], gang: Gang) -> None:
    """UsageError where the ranks train unrelated models, of which a checkpoint would hold a mix. Collective."""
    if gang.world_size == 1:
        return
    trained = {
        id(parameter)
        for t in tracked
        if isinstance(t.thing, Optimizer)
        for group in t.thing.param_groups
        for parameter in group["params"]
    }
    own = [
        (t, name, parameter)
        for t in tracked
        if isinstance(t.thing, nn.Module)
        for name, parameter in unsynchronised(t.thing, trained)
    ]
    by_rank = gang.gather(sums([parameter for _, _, parameter in own]))
    for rank, found in enumerate(by_rank):
        if len(found) != len(own):
            continue
        for (t, name, _), one, first in zip(own, found, by_rank[0], strict=True):
            if one != first:
                raise UsageError(
                    f"{t.where}: {t.name!r} isn't wrapped, and its {name} on rank {rank} is not that of rank 0: each "
                    f"of the {gang.world_size} ranks trains a model of its own, and a checkpoint holds one. Write "
                    f"{t.name} = session.wrap({t.name}) above its optimizer"
                )
