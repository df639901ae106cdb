"""Parts of a ``ServingDeployment``: the base of all sections, quantities, references."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.alias_generators import to_camel

from octavo_api.rules import Ruled
from octavo_api.settings import Bytes

_CPUS = re.compile(r"([0-9]{1,6})m|([0-9]{1,6}(?:\.[0-9]{1,3})?)")
_OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_SECRET_KEY = r"^[-._a-zA-Z0-9]+$"

Passthrough = Annotated[dict[str, Any], Field(max_length=64)]
"""An object of Kubernetes or KubeRay that is passed on unchanged. The API server checks it there."""

Words = dict[str, Annotated[str, Field(max_length=4096)]]
"""Annotations or labels."""


def without_nulls(values: Any) -> Any:
    """Remove null fields, as the API server does."""
    return {name: value for name, value in values.items() if value is not None} if isinstance(values, dict) else values


class Section(Ruled):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    _nulls = model_validator(mode="before")(without_nulls)


def parse_cpus(value: object) -> object:
    """Convert a Kubernetes CPU quantity (``2``, ``1500m``, ``"1.5"``) to a number of CPUs."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError('must be a whole number, or a string like 1500m or "1.5"; the API server accepts no fractions')
    if not isinstance(value, str):
        return value
    if (match := _CPUS.fullmatch(value)) is None:
        raise ValueError("must be a number of CPUs or a quantity like 2 or 1500m")
    return int(match[1]) / 1000 if match[1] else float(match[2])


def _spell_cpus(value: float) -> int | str:
    return int(value) if value.is_integer() else f"{round(value * 1000)}m"


Cpus = Annotated[
    float,
    BeforeValidator(parse_cpus, json_schema_input_type=int | Annotated[str, Field(pattern=f"^({_CPUS.pattern})$")]),
    PlainSerializer(_spell_cpus, return_type=int | str, when_used="json"),
]
"""A whole number, or a string like ``1500m``."""


class SecretKeyRef(Section):
    """One key of a Secret in the deployment's namespace."""

    name: str = Field(min_length=1, max_length=253, pattern=_OBJECT_NAME, description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, pattern=_SECRET_KEY, description="Key in the Secret.")


class TokenRef(SecretKeyRef):
    """A key of a Secret that holds a Hugging Face token."""

    key: str = Field("HF_TOKEN", min_length=1, max_length=253, pattern=_SECRET_KEY, description="Key in the Secret.")


class ApiKeyRef(SecretKeyRef):
    """A key of a Secret that holds API keys."""

    key: str = Field(
        "api-keys",
        min_length=1,
        max_length=253,
        pattern=_SECRET_KEY,
        description="Key in the Secret: one API key a line.",
    )


class RayTokenRef(SecretKeyRef):
    """A key of a Secret that holds Ray's token."""

    key: str = Field("auth_token", min_length=1, max_length=253, pattern=_SECRET_KEY, description="Key in the Secret.")


class TlsRef(Section):
    """A Secret of type ``kubernetes.io/tls``: ``tls.crt`` and ``tls.key``."""

    name: str = Field(min_length=1, max_length=253, pattern=_OBJECT_NAME, description="Name of the Secret.")


class ClaimRef(Section):
    """A PersistentVolumeClaim in the deployment's namespace."""

    claim_name: str = Field(
        min_length=1,
        max_length=253,
        pattern=_OBJECT_NAME,
        description="A PersistentVolumeClaim that all pods can mount.",
    )


class ResourceList(Section):
    """Amounts of the resources of a container."""

    cpu: Cpus | None = Field(None, gt=0, description="CPUs: a whole number, or a string like 500m.")
    memory: Bytes | None = Field(None, gt=0, description="Memory: a number of bytes, or a string like 4Gi.")


class Resources(Section):
    """Limits and requests, as in a container."""

    limits: ResourceList = Field(ResourceList(), description="Maximum resources of the container.")
    requests: ResourceList = Field(
        ResourceList(), description="Resources reserved for the container; an omitted amount is that of the limit."
    )
