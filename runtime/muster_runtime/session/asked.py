"""What a script asks of its optimizers and schedulers as it makes them.

A checkpoint holds these values, too, and a resume takes them from there: a learning rate that somebody has changed in
the script meanwhile has no effect. So each checkpoint remembers what the run was begun with, by which that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from muster_runtime.session.tracking import Tracked

Asked = dict[str, dict[str, str]]
"""By the name of the tracked object and that of the option, in Python's words."""

_KIND: Final = "kind"
_NOT_ASKED: Final = frozenset(("params", "param_names", "initial_lr", "base_lrs", "last_epoch"))
"""What follows from the rest."""
_DECOUPLED: Final = "decoupled_weight_decay"
"""An option that makes AdamW of Adam, from torch 2.7 on: AdamW's checkpoint has it, and Adam takes it from there."""
_TOLD: Final = 5
_LONGEST: Final = 80
"""Characters of a value, in a sentence."""


def asked(objects: Iterable[Tracked]) -> Asked:
    """Before anything is restored."""
    found: Asked = {}
    for tracked in objects:
        if isinstance(tracked.thing, Optimizer):
            found[tracked.name] = {_KIND: type(tracked.thing).__name__, **_of_groups(tracked.thing.param_groups)}
        elif isinstance(tracked.thing, LRScheduler):
            options = dict(_of_scheduler(tracked.thing.state_dict()))
            found[tracked.name] = {_KIND: type(tracked.thing).__name__, **options}
    return found


def changes(then: Asked, now: Asked, seed: tuple[int, int] = (0, 0)) -> str:
    """What the script asks for `now` and didn't `then`, for people; "" for nothing. `seed`: then, and now."""
    found = [f"the seed is {seed[1]} now and was {seed[0]}"] if seed[0] != seed[1] else []
    found += [
        f"{name}'s {option} is {_short(value)} in the script and was {_short(then[name][option])}"
        for name, options in now.items()
        for option, value in options.items()
        if then.get(name, {}).get(option, value) != value
    ]
    if not found:
        return ""
    told = "; ".join([*found[:_TOLD], *([f"and {len(found) - _TOLD} more"] if len(found) > _TOLD else [])])
    others = [name for name, options in now.items() if _computes_otherwise(then.get(name, options), options)]
    by = f", by which {' and '.join(others)} now computes as the script's kind does" if others else ""
    return (
        f"{told}. The run goes on with the values that its checkpoint has{by}: for other values set them in the loop, "
        "or begin a run with another checkpoint.uri (and checkpoint.from with load: model)"
    )


def _computes_otherwise(then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether another kind makes something else of the checkpoint's values."""
    before, after = then.get(_KIND), now.get(_KIND)
    stays = (before, after) == ("AdamW", "Adam") and _DECOUPLED in then and _DECOUPLED in now
    return before != after and not stays


def _of_groups(groups: list[dict[str, Any]]) -> Mapping[str, str]:
    names = dict.fromkeys(name for group in groups for name in group if name not in _NOT_ASKED)
    return {
        name: ", ".join(str(text) for text, _ in groupby(texts))
        for name in names
        if None not in (texts := [_text(group.get(name)) for group in groups])
    }


def _of_scheduler(state: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """torch's schedulers have a dict, with a list of such under `_schedulers`; a script's own may have anything."""
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if name == "_schedulers" and isinstance(value, list):
            for number, inner in enumerate(value):
                yield from _of_scheduler(inner, f"{path}{number}.")
        elif _is_option(name) and (text := _text(value)) is not None:
            yield f"{path}{name}", text


def _is_option(name: Any) -> bool:
    return isinstance(name, str) and name not in _NOT_ASKED and not name.startswith("_")


def _text(value: Any) -> str | None:
    """None for what has no words that are the same in each process."""
    if isinstance(value, torch.Tensor):
        return repr(value.item()) if value.numel() == 1 and not value.is_meta else None
    if isinstance(value, (list, tuple)):
        texts = [_text(one) for one in value]
        return None if None in texts else f"({', '.join(map(str, texts))})"
    if isinstance(value, dict):
        pairs = [(_text(key), _text(one)) for key, one in value.items()]
        return None if any(None in pair for pair in pairs) else f"{{{', '.join(f'{k}: {v}' for k, v in pairs)}}}"
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
