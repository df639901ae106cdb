"""The CustomResourceDefinition, generated from the types.

``python -m octavo_api.schema.crd [FOLDER]`` writes it for kustomize and for the chart. A test checks that both are up
to date.
"""

import argparse
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import annotated_types
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from octavo_api.resource.deployment import API_VERSION, KIND, Metadata, ServingDeployment, Spec
from octavo_api.resource.status import Status
from octavo_api.rules import Rule, Ruled, Transition
from octavo_api.schema.fields import Field, Kind, Shape, describe, first_paragraph
from octavo_api.settings import Change

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "servingdeployments"

STORED_DEFAULTS = frozenset(
    {
        "spec.replicas",
        "spec.suspend",
        "spec.deletionPolicy",
        "spec.autoscaling.minReplicas",
        "spec.router.replicas",
        "spec.rollout.strategy",
        "spec.endpoint.service.type",
        "spec.model.secretRef.key",
        "spec.endpoint.apiKeySecretRef.key",
        "spec.rayCluster.external.authSecretRef.key",
    }
)
"""Defaults that the API server writes into stored objects, so that no release can change them there.

``replicas`` is required, because without it ``/scale`` reports 0. Each release may choose all other defaults.
"""

_KEEP = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""
_QUANTITY_LENGTH = 41
"""Longest string that the patterns of quantities allow."""


def definition() -> dict[str, Any]:
    """Return the whole CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["sdep"],
                "categories": ["all", "llm"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _columns(),
                }
            ],
        },
    }


def _columns() -> list[dict[str, Any]]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    return [
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status"},
        {"name": "Model", "type": "string", "jsonPath": ".spec.model.uri"},
        {"name": "Replicas", "type": "integer", "jsonPath": ".status.readyReplicas"},
        {"name": "Desired", "type": "integer", "jsonPath": ".status.replicas"},
        {"name": "Reason", "type": "string", "jsonPath": f"{ready}.reason"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "URL", "type": "string", "jsonPath": ".status.urls.http", "priority": 1},
        {"name": "Ray", "type": "string", "jsonPath": ".status.rayCluster.name", "priority": 1},
    ]


def schema() -> dict[str, Any]:
    """Return the structural schema of a whole object."""
    name = _limits(Metadata.model_fields["name"].metadata, Kind.STRING)
    valid_name = Rule(
        f"the name must match {name['pattern']} and have at most {name['maxLength']} characters",
        f"size(self.metadata.name) <= {name['maxLength']} && self.metadata.name.matches('{name['pattern']}')",
        holds=bool,
    )
    return {
        "type": "object",
        "description": first_paragraph(ServingDeployment),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"description": first_paragraph(Spec)} | _object(Spec, ("spec",)),
            "status": {"description": first_paragraph(Status)} | _object(Status, ("status",)),
        },
        "x-kubernetes-validations": [_validation(valid_name)],
    }


def _object(model: type[BaseModel], path: tuple[str, ...], above: Field | None = None) -> dict[str, Any]:
    fields = [describe(name, info, path, above) for name, info in model.model_fields.items()]
    required = [field.path[-1] for field in fields if field.info.is_required()]
    rules: list[Rule | Transition] = [*model.RULES, *model.TRANSITIONS] if issubclass(model, Ruled) else []
    return {
        "type": "object",
        "properties": {field.path[-1]: _field(field) for field in fields},
        **({"required": required} if required else {}),
        **({"x-kubernetes-validations": [_validation(rule) for rule in rules]} if rules else {}),
    }


def _field(field: Field) -> dict[str, Any]:
    made = {"description": described(field), **_shape(field.shape, field)}
    if field.spelled in STORED_DEFAULTS:
        default = field.info.default
        made["default"] = default.value if isinstance(default, StrEnum) else default
    made |= _extra(field.info)
    if "x-kubernetes-list-map-keys" in made:
        made["x-kubernetes-list-type"] = "map"
    rules = [item for item in field.shape.metadata if isinstance(item, Rule)]
    checks = [*map(_validation, rules), *_quantity_checks(field.shape)]
    if is_immutable(field):
        message = f"{field.path[-1]} cannot be changed; delete and create the resource"
        checks.append(_validation(Transition(message, "self == oldSelf")))
    return made | ({"x-kubernetes-validations": checks} if checks else {})


def _extra(info: FieldInfo) -> dict[str, Any]:
    """Return the keys of a field's definition that belong to the schema itself."""
    extra = info.json_schema_extra
    return (
        {key: value for key, value in extra.items() if not key.startswith("x-octavo")}
        if isinstance(extra, dict)
        else {}
    )


def is_immutable(field: Field) -> bool:
    """Return True if the value itself cannot be changed; for a section, if its presence cannot."""
    return field.change == Change.IMMUTABLE and field.shape.section is None


def described(field: Field) -> str:
    """Return description, unit, default and effect of a change."""
    return " ".join(
        [
            field.description,
            *([f"Unit: {field.unit}."] if field.unit else []),
            *([f"Default: {text}."] if field.change and (text := default_text(field)) else []),
            *([f"Change: {field.change}."] if field.change else []),
        ]
    )


def default_text(field: Field) -> str:
    """Return the default in words. It is empty for a required field and for a section with defaults inside."""
    if field.default is ...:
        return ""
    if field.default is None or isinstance(field.default, BaseModel):
        return field.auto
    spelled = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    text = "none" if field.default in ([], {}, "") else spelled
    return f"{text}, which is {field.auto}" if field.auto else text


def _shape(shape: Shape, field: Field) -> dict[str, Any]:
    limits = _limits(shape.metadata, shape.kind)
    match shape.kind:
        case Kind.SECTION:
            assert shape.model is not None
            return _object(shape.model, field.path, field)
        case Kind.LIST:
            assert shape.item is not None
            return {"type": "array", "items": _shape(shape.item, field), "x-kubernetes-list-type": "atomic", **limits}
        case Kind.MAP:
            assert shape.item is not None
            return {"type": "object", "additionalProperties": _shape(shape.item, field), **limits}
        case Kind.PASSTHROUGH:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **limits}
        case Kind.BYTES | Kind.CPUS:
            pattern = {"pattern": _quantity_pattern(shape), "maxLength": _QUANTITY_LENGTH}
            return {"x-kubernetes-int-or-string": True, **pattern, **limits}
        case Kind.CHOICE:
            return {"type": "string", "enum": list(shape.choices)}
        case Kind.INTEGER:
            return {"type": "integer", **_integer(limits)}
        case _:
            return {"type": shape.kind.value, **limits}


def _integer(limits: dict[str, Any]) -> dict[str, Any]:
    """Return format and limits of an integer.

    The API server keeps limits as doubles. It would round the largest int64 to a number that no int64 can reach, and
    reject every value of the field. The format contains that limit already.
    """
    if limits["maximum"] < 2**31:
        return {"format": "int32", **limits}
    exact = {name: limit for name, limit in limits.items() if abs(limit) <= 2**53}
    if any(limit != 2**63 - 1 for name, limit in limits.items() if name not in exact):
        raise ValueError(f"limits: got {limits}, allowed: at most 2**53, or 2**63 - 1")
    return {"format": "int64", **exact}


_LENGTHS = {
    Kind.LIST: ("minItems", "maxItems"),
    Kind.MAP: ("minProperties", "maxProperties"),
    Kind.PASSTHROUGH: ("minProperties", "maxProperties"),
    Kind.STRING: ("minLength", "maxLength"),
}


def _limits(metadata: Any, kind: Kind) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for item in metadata:
        match item:
            case annotated_types.Ge(ge=bound):
                limits["minimum"] = bound
            case annotated_types.Gt(gt=bound):
                limits["minimum"] = int(str(bound)) + 1  # only whole numbers are written as numbers
            case annotated_types.Le(le=bound):
                limits["maximum"] = bound
            case annotated_types.MultipleOf(multiple_of=step):
                limits["multipleOf"] = step
            case annotated_types.MinLen(min_length=bound):
                limits[_LENGTHS[kind][0]] = bound
            case annotated_types.MaxLen(max_length=bound):
                limits[_LENGTHS[kind][1]] = bound
        if pattern := getattr(item, "pattern", None):
            limits["pattern"] = pattern
    return limits


def _quantity_pattern(shape: Shape) -> str:
    """Return the pattern of a quantity's string form, from its validator."""
    for item in shape.metadata:
        for branch in getattr(getattr(item, "json_schema_input_type", None), "__args__", ()):
            for limit in getattr(branch, "__metadata__", ()):
                if isinstance(limit, FieldInfo) and (pattern := _limits(limit.metadata, Kind.STRING).get("pattern")):
                    return str(pattern)
    raise TypeError(f"{shape.kind} without a pattern")


def _quantity_checks(shape: Shape) -> list[dict[str, str]]:
    """Return the limits of a quantity's string form, because ``minimum`` ignores strings."""
    if shape.kind not in (Kind.BYTES, Kind.CPUS):
        return []
    for item in shape.metadata:
        match item:
            case annotated_types.Ge(ge=bound):
                words, test = f"at least {bound}", f"!quantity({{}}).isLessThan(quantity('{bound}'))"
            # Fractions of a byte are dropped, so less than one byte is none.
            case annotated_types.Gt(gt=0) if shape.kind is Kind.BYTES:
                words, test = "at least 1", "!quantity({}).isLessThan(quantity('1'))"
            case annotated_types.Gt(gt=bound):
                words, test = f"more than {bound}", f"quantity({{}}).isGreaterThan(quantity('{bound}'))"
            case _:
                continue
        number = "self.replace('B', '')" if shape.kind is Kind.BYTES else "self"
        return [_validation(Transition(f"must be {words}", f"type(self) == int || {test.format(number)}"))]
    return []


def _validation(rule: Rule | Transition) -> dict[str, str]:
    return {"rule": rule.cel, "message": rule.message, **({"fieldPath": rule.at} if rule.at else {})}


def manifest(*, chart: bool = False) -> str:
    """Return the definition in YAML. For the chart, add the conditions that its values control."""
    text = yaml.safe_dump(definition(), sort_keys=False, width=120, allow_unicode=True)
    text = f"# Generated from the code by `python -m octavo_api.schema.crd`; do not edit.\n{text}"
    if not chart:
        return text
    named = f"  name: {PLURAL}.{GROUP}\n"
    assert "{{" not in text
    return "{{- if .Values.crds.install }}\n" + text.replace(named, named + _KEEP, 1) + "{{- end }}\n"


FILES: dict[Path, Callable[[], str]] = {
    Path("manifests/base/crd/servingdeployments.yaml"): manifest,
    Path("helm/octavo/templates/crds/servingdeployments.yaml"): partial(manifest, chart=True),
}
"""Generated files by path from the repository's root."""


def main(folder: Path = Path()) -> None:
    """Write the definition for kustomize and for the chart, under the repository's root ``folder``."""
    for path, render in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="repository root; default: %(default)s")
    main(parser.parse_args().folder)
