"""From pydantic models to CustomResourceDefinitions: structural OpenAPI v3 schemas with CEL rules.

The models are read field by field instead of through pydantic's own JSON schema, which knows neither list types nor CEL
and writes references, which a CRD may not have. Descriptions are the docstrings under the fields.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
import types
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Final, Union, get_args, get_origin

from annotated_types import Ge, Le, Len, MaxLen, MinLen
from pydantic.fields import FieldInfo

from muster.api.common import GROUP, VERSION, Model, OpenModel, Resource
from muster.api.schema import Atomic, Int64, IntOrString, MapList, OneOf, Open, Rule, SchemaDefault, SetList

Schema = dict[str, Any]

CATEGORY: Final = "muster"


@dataclass(frozen=True)
class Column:
    """A printer column. `wide` ones only show with `kubectl get -o wide`."""

    name: str
    type: str
    path: str
    description: str
    wide: bool = False


@dataclass(frozen=True)
class Scale:
    """Paths of the scale subresource."""

    spec_replicas: str
    status_replicas: str
    selector: str


@dataclass(frozen=True)
class Kind:
    """A kind, and how the API server serves it."""

    model: type[Resource]
    plural: str
    short: str
    namespaced: bool
    columns: tuple[Column, ...]
    scale: Scale | None = None

    @property
    def name(self) -> str:
        return self.model.__name__

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{GROUP}"


def custom_resource_definition(kind: Kind) -> Schema:
    """The whole CRD."""
    subresources: Schema = {"status": {}}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": kind.scale.spec_replicas,
            "statusReplicasPath": kind.scale.status_replicas,
            "labelSelectorPath": kind.scale.selector,
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root(kind.model)},
                    "subresources": subresources,
                    "additionalPrinterColumns": [_column(column) for column in kind.columns],
                }
            ],
        },
    }


def _column(column: Column) -> Schema:
    result: Schema = {
        "name": column.name,
        "type": column.type,
        "jsonPath": column.path,
        "description": column.description,
    }
    if column.wide:
        result["priority"] = 1
    return result


def _root(model: type[Resource]) -> Schema:
    result: Schema = {
        "description": class_doc(model),
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": model.__name__},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": field_schema(model, "spec"),
            "status": _without_rules(field_schema(model, "status")),
        },
    }
    if model.model_fields["spec"].is_required():
        result["required"] = ["spec"]
    return result | _validations(model.RULES)


def _without_rules(schema: Schema) -> Schema:
    """Only the operator writes a status, whose parts are partly those of a spec, and each rule costs every write."""
    kept = {name: part for name, part in schema.items() if name != "x-kubernetes-validations"}
    if "properties" in kept:
        kept["properties"] = {name: _without_rules(part) for name, part in kept["properties"].items()}
    for name in ("items", "additionalProperties"):
        if name in kept:
            kept[name] = _without_rules(kept[name])
    return kept


def field_schema(model: type[Model], name: str) -> Schema:
    """The schema of one field, its description included."""
    field = model.model_fields[name]
    schema = _schema(field.annotation, tuple(field.metadata))
    description = " ".join((field_doc(model, name), *_meanings(_unwrap(field.annotation, ())[0])))
    return {"description": description, **{k: v for k, v in schema.items() if k != "description"}}


def _meanings(annotation: Any) -> list[str]:
    """What each value of an enum means, where the enum says it."""
    if not (inspect.isclass(annotation) and issubclass(annotation, Enum)):
        return []
    docs = attribute_docs(annotation.__module__).get(annotation.__name__, {})
    return [f"{member.value}: {docs[member.name]}" for member in annotation if member.name in docs]


def _schema(annotation: Any, marks: tuple[Any, ...]) -> Schema:
    annotation, marks = _unwrap(annotation, marks)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        schema = _array(_schema(arguments[0], ()), marks)
    elif origin is dict:
        schema = _open(marks) or {"type": "object", "additionalProperties": _schema(arguments[1], ())}
        schema |= _bounds(marks, "minProperties", "maxProperties")
    elif inspect.isclass(annotation) and issubclass(annotation, Model):
        schema = _object(annotation)
    else:
        schema = _scalar(annotation, marks)
    for mark in marks:
        if isinstance(mark, SchemaDefault):
            schema["default"] = mark.value
        elif isinstance(mark, Atomic):
            schema["x-kubernetes-map-type"] = "atomic"
        elif isinstance(mark, OneOf):
            schema["enum"] = list(mark.values)
    rules = annotation.RULES if inspect.isclass(annotation) and issubclass(annotation, Model) else ()
    return schema | _validations((*rules, *(mark for mark in marks if isinstance(mark, Rule))))


def _unwrap(annotation: Any, marks: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Without `| None` and `Annotated`; marks of an inner layer come first, so that an outer one wins."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *inner = get_args(annotation)
            marks = (*inner, *marks)
        elif get_origin(annotation) in (Union, types.UnionType):
            members = [member for member in get_args(annotation) if member is not type(None)]
            if len(members) != 1:
                raise TypeError(f"{annotation}: a structural schema has one type a field")
            annotation = members[0]
        else:
            return annotation, marks


def _object(model: type[Model]) -> Schema:
    schema: Schema = {"description": class_doc(model), "type": "object"}
    if issubclass(model, OpenModel):
        schema["x-kubernetes-preserve-unknown-fields"] = True
    required = [_wire_name(name, field) for name, field in model.model_fields.items() if field.is_required()]
    if required:
        schema["required"] = required
    schema["properties"] = {
        _wire_name(name, field): field_schema(model, name) for name, field in model.model_fields.items()
    }
    return schema


def _wire_name(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _array(items: Schema, marks: tuple[Any, ...]) -> Schema:
    schema: Schema = {"type": "array", "items": items, **_bounds(marks, "minItems", "maxItems")}
    if "maxItems" not in schema:
        raise TypeError("a list without a longest length: CEL's cost could not be bounded")
    keys = next((mark.keys for mark in marks if isinstance(mark, MapList)), None)
    if keys:
        return schema | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    is_set = any(isinstance(mark, SetList) for mark in marks)
    return schema | {"x-kubernetes-list-type": "set" if is_set else "atomic"}


def _open(marks: tuple[Any, ...]) -> Schema | None:
    if any(isinstance(mark, Open) for mark in marks):
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return None


def _scalar(annotation: Any, marks: tuple[Any, ...]) -> Schema:
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return {"type": "string", "enum": [member.value for member in annotation]}
    if annotation is datetime and any(isinstance(mark, Rule) for mark in marks):
        return {"type": "string", "maxLength": 64}  # where there is a format, its words come in the place of the rule's
    if annotation is datetime:
        return {"type": "string", "format": "date-time"}
    if annotation is bool:
        return {"type": "boolean"}
    if annotation is int:
        wide = any(isinstance(mark, Int64) for mark in marks)
        return {"type": "integer", "format": "int64" if wide else "int32", **_limits(marks)}
    mixed = next((mark for mark in marks if isinstance(mark, IntOrString)), None)
    if annotation is str and mixed is not None:
        return {
            "x-kubernetes-int-or-string": True,
            **({"pattern": mixed.pattern} if mixed.pattern else {}),
            **({} if mixed.least is None else {"minimum": mixed.least}),
            **_bounds(marks, "minLength", "maxLength"),
        }
    if annotation is str:
        return {"type": "string", **_bounds(marks, "minLength", "maxLength")}
    raise TypeError(f"{annotation}: no schema is known for this type")


def _limits(marks: tuple[Any, ...]) -> Schema:
    schema: Schema = {}
    for mark in marks:
        if isinstance(mark, Ge):
            schema["minimum"] = mark.ge
        elif isinstance(mark, Le):
            schema["maximum"] = mark.le
    return schema


def _bounds(marks: tuple[Any, ...], least: str, most: str) -> Schema:
    schema: Schema = {}
    for mark in marks:
        if isinstance(mark, (Len, MinLen)) and mark.min_length:
            schema[least] = mark.min_length
        if isinstance(mark, (Len, MaxLen)) and mark.max_length is not None:
            schema[most] = mark.max_length
    return schema


def _validations(rules: tuple[Rule, ...]) -> Schema:
    return {"x-kubernetes-validations": [_validation(rule) for rule in rules]} if rules else {}


def _validation(rule: Rule) -> Schema:
    schema: Schema = {"rule": rule.cel, "message": rule.message, "reason": rule.reason.value}
    if rule.field_path:
        schema["fieldPath"] = rule.field_path
    if rule.message_cel:
        schema["messageExpression"] = rule.message_cel
    return schema


# -- descriptions ----------------------------------------------------------------------------------------------------


def class_doc(model: type) -> str:
    """The class's docstring in one line of prose. Raises TypeError when it has none."""
    text = model.__dict__.get("__doc__")
    if not text:
        raise TypeError(f"{model.__name__} has no docstring, so `kubectl explain` would say nothing")
    return " ".join(text.split())


def field_doc(model: type, name: str) -> str:
    """The docstring under the field. Raises TypeError when it has none."""
    for owner in model.__mro__:
        if owner.__module__.startswith("muster."):
            docs = attribute_docs(owner.__module__).get(owner.__name__, {})
            if name in docs:
                return docs[name]
    raise TypeError(f"{model.__name__}.{name} has no docstring, so `kubectl explain` would say nothing")


@functools.cache
def attribute_docs(module: str) -> dict[str, dict[str, str]]:
    """By class and attribute: the string that follows an assignment in a class body of `module`."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _docs_in(node.body) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docs_in(body: list[ast.stmt]) -> dict[str, str]:
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        target = _assigned(statement)
        if target and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[target] = " ".join(str(following.value.value).split())
    return docs


def _assigned(statement: ast.stmt) -> str:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return ""
