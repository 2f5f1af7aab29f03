"""Our kinds as the API server gives them. Jobs whose specs say the same share one spec, and what is made of it.

Ten thousand jobs are kept, and most differ from another in little but the name: a spec is the larger part of a job in
memory, and of the time that reading it takes. Of what remains, a quarter were the sets in which pydantic notes which
fields an object was given: there are few different ones, which are shared, too.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from muster.api.trainingjob import TrainingJob, TrainingJobSpec
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue

A = TypeVar("A")
B = TypeVar("B")

log = logging.getLogger(__name__)

SHARED: Final = 4096
"""Distinct specs that are remembered, the last used ones."""

_UNTOLD: Final = TrainingJobStatus()

_fields_sets: Final[dict[frozenset[str], set[str]]] = {}
"""Of the models' own fields, so there are not many of them."""


def read_job(raw: Mapping[str, Any]) -> TrainingJob:
    """Raises pydantic.ValidationError when the object does not fit the model."""
    if "spec" not in raw:
        return TrainingJob.model_validate(raw)
    try:
        spec = _spec(json.dumps(raw["spec"], separators=(",", ":")))
    except (ValueError, RecursionError):
        return TrainingJob.model_validate(raw)  # says where in the whole object
    job = TrainingJob.model_validate({**raw, "spec": spec, "status": raw.get("status") or _UNTOLD})
    _share_fields_set(job.metadata)
    if job.status is not _UNTOLD:
        _share_fields_set(job.status)
    return job


def read_queue(raw: Mapping[str, Any]) -> TrainingQueue:
    """A status that does not fit the model counts as none, and is written anew: all in it is the operator's own word.

    Raises pydantic.ValidationError when the spec does not fit it.
    """
    try:
        return TrainingQueue.model_validate(raw)
    except ValidationError as error:
        if any(item["loc"][:1] != ("status",) for item in error.errors()):
            raise
        log.error("TrainingQueue %s: its status begins anew, for it can't be read: %s", raw["metadata"]["name"], error)
        return TrainingQueue.model_validate({**raw, "status": {}})


@lru_cache(maxsize=SHARED)
def _spec(text: str) -> TrainingJobSpec:
    return TrainingJobSpec.model_validate_json(text)


def _share_fields_set(model: BaseModel) -> None:
    """Of it and all in it. Models are frozen, and a copy of one has a set of its own."""
    given = model.model_fields_set
    object.__setattr__(model, "__pydantic_fields_set__", _fields_sets.setdefault(frozenset(given), given))
    for value in model.__dict__.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, BaseModel):
                _share_fields_set(item)


class Once(Generic[A, B]):
    """A pure function of one frozen object, remembered by the object itself: models with mappings have no hash."""

    def __init__(self, function: Callable[[A], B]) -> None:
        self._function = function
        self._known: OrderedDict[int, tuple[A, B]] = OrderedDict()

    def __call__(self, argument: A) -> B:
        # An id is another object's only after this one has gone, and as long as it is remembered it stays.
        found = self._known.get(id(argument))
        if found is not None:
            self._known.move_to_end(id(argument))
            return found[1]
        result = self._function(argument)
        self._known[id(argument)] = argument, result
        if len(self._known) > SHARED:
            self._known.popitem(last=False)
        return result
