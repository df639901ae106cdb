"""``ServingDeployment``: the one document that describes what is served, in Kubernetes and by ``octavo up -f``.

Fields are lowerCamelCase in documents. Each says its unit, its default, and what a change of it does.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from octavo_api.errors import ConfigurationError
from octavo_api.settings import Bytes, Change, EngineSettings, RouterSettings, explain, setting

API_VERSION: Literal["serving.octavo.dev/v1alpha1"] = "serving.octavo.dev/v1alpha1"
KIND: Literal["ServingDeployment"] = "ServingDeployment"

_SCHEMES = ("embedded://", "hf://", "file://")
_CPUS = re.compile(r"([0-9]+)m|([0-9]+(?:\.[0-9]+)?)")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


def _uri(value: str) -> str:
    if not value.startswith(_SCHEMES):
        raise ValueError(f"must start with one of {', '.join(_SCHEMES)}")
    return value


def parse_cpus(value: object) -> object:
    """Turns a Kubernetes CPU quantity (``2``, ``1500m``) into a number of CPUs."""
    if not isinstance(value, str):
        return value
    if (match := _CPUS.fullmatch(value.strip())) is None:
        raise ValueError("must be a number of CPUs or a quantity like 2 or 1500m")
    return int(match[1]) / 1000 if match[1] else float(match[2])


Cpus = Annotated[
    float,
    BeforeValidator(parse_cpus, json_schema_input_type=float | Annotated[str, Field(pattern=f"^({_CPUS.pattern})$")]),
]
"""A number, or a string like ``1500m``."""


class Metadata(BaseModel):
    """Kubernetes' object metadata; what a cluster adds beside these fields is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Model(_Section):
    uri: Annotated[str, AfterValidator(_uri)] = setting(
        ...,
        "Where the model is: `embedded://smollm2`, `hf://ORGANISATION/NAME`, or `file:///FOLDER` or "
        "`file:///FILE.gguf` on the machine of the replica.",
        change=Change.ROLLING,
        max_length=2048,
    )
    revision: str | None = setting(
        None, "Commit, tag or branch of a `hf://` model.", change=Change.ROLLING, auto="main", max_length=128
    )
    served_name: str | None = setting(
        None, "The model's name in requests.", change=Change.LIVE, auto="metadata.name", max_length=253
    )


class ResourceList(_Section):
    cpu: Cpus | None = setting(
        None, "CPUs of one engine replica.", change=Change.ROLLING, auto="an equal share of the machine", gt=0
    )
    memory: Bytes | None = setting(
        None, "Memory of one engine replica.", change=Change.ROLLING, unit="bytes", auto="no limit of its own", gt=0
    )


class Resources(_Section):
    limits: ResourceList = ResourceList()


class Router(RouterSettings):
    replicas: int = setting(1, "Number of gateways.", change=Change.LIVE, ge=1, le=64)


class Rollout(_Section):
    drain_seconds: int = setting(
        600,
        "Longest time that a replica may take to end its streams before it is stopped.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=3600,
    )


class Port(_Section):
    port: int = Field(ge=1, le=65535)


class Endpoint(_Section):
    http: Port = setting(Port(port=8000), "HTTP listener.", change=Change.NEW_CLUSTER)
    grpc: Port = setting(Port(port=9000), "gRPC listener.", change=Change.NEW_CLUSTER)

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.http.port == self.grpc.port:
            raise ValueError("http.port and grpc.port must differ")
        return self


class Spec(_Section):
    model: Model
    engine: EngineSettings = EngineSettings()
    replicas: int = setting(1, "Number of engine replicas.", change=Change.LIVE, ge=0, le=1024)
    router: Router = Router()
    resources: Resources = Resources()
    rollout: Rollout = Rollout()
    endpoint: Endpoint = Endpoint()


class ServingDeployment(_Section):
    api_version: Literal["serving.octavo.dev/v1alpha1"] = API_VERSION
    kind: Literal["ServingDeployment"] = KIND
    metadata: Metadata
    spec: Spec

    @property
    def served_name(self) -> str:
        return self.spec.model.served_name or self.metadata.name

    @classmethod
    def read(cls, document: Mapping[str, Any], *, where: str = "ServingDeployment") -> Self:
        """Checks a parsed document; raises ``ConfigurationError`` with one line per wrong field."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ConfigurationError(explain(error, cls, where)) from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads one YAML document from a file; raises ``ConfigurationError``."""
        try:
            document = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise ConfigurationError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigurationError(f"{path}: {error}") from None
        if not isinstance(document, dict):
            raise ConfigurationError(f"{path}: got {type(document).__name__}, allowed: one ServingDeployment mapping")
        return cls.read(document, where=str(path))
