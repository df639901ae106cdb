"""``status`` of a ``ServingDeployment``: what the operator writes and everybody reads."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

LIMIT = 1024
"""Longest message in characters; the operator cuts what Ray says."""

_Url = Annotated[str, Field(max_length=2048)]
_Name = Annotated[str, Field(max_length=253)]
_Message = Annotated[str, Field(max_length=LIMIT)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Condition(_Part):
    """One thing that is so, is not so, or is not known."""

    type: str = Field(
        min_length=1, max_length=316, description="What is judged: Ready, Available, and what they are made of."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    observed_generation: int | None = Field(None, ge=0, le=2**63 - 1, description="The generation that was judged.")
    last_transition_time: str = Field(
        max_length=64, json_schema_extra={"format": "date-time"}, description="When `status` last changed."
    )
    reason: str = Field(
        min_length=1,
        max_length=LIMIT,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Why, in one word; docs/troubleshooting.md says what to do.",
    )
    message: str = Field(max_length=32768, description="Why, in a sentence.")


class Urls(_Part):
    """Where requests go."""

    http: _Url | None = Field(None, description="Base of OpenAI's interface, with `/v1`.")
    grpc: _Url | None = Field(None, description="HOST:PORT of `octavo.v1.Inference`.")
    dashboard: _Url | None = Field(None, description="Ray's dashboard.")


_Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class DrainingCluster(_Part):
    """A cluster that is being stopped."""

    name: _Name = Field(description="Name of the RayCluster.")
    since: str = Field(
        max_length=64, json_schema_extra={"format": "date-time"}, description="When it was to stop; its streams end."
    )


class RayClusterStatus(_Part):
    """The Ray cluster that serves, and the one that is to follow it."""

    name: _Name | None = Field(None, description="Name of the RayCluster, in managed mode.")
    mode: Literal["Managed", "External"] | None = Field(None, description="Whose the cluster is.")
    address: _Url | None = Field(None, description="Address of its dashboard.")
    ray_version: Annotated[str, Field(max_length=64)] | None = Field(None, description="Version of Ray in it.")
    image: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="Image of its pods, kept as long as the cluster."
    )
    active_hash: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Hash of the pods' part of spec in the cluster that serves."
    )
    pending_hash: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="The same of the cluster that is being made."
    )
    draining: list[DrainingCluster] = Field(
        [],
        max_length=16,
        json_schema_extra={"x-kubernetes-list-map-keys": ["name"]},
        description="Clusters that are being stopped.",
    )


class DeploymentStatus(_Part):
    """One deployment of the application: engines or gateways."""

    name: _Name = Field(description="Engine or Gateway.")
    status: _Name = Field(description="Serve's word.")
    replicas: dict[str, Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(
        {}, max_length=16, description="Number of replicas by state, in Serve's words."
    )


class ApplicationStatus(_Part):
    """One Ray Serve application."""

    name: _Name = Field(description="Its name in Serve.")
    status: _Name = Field(description="Serve's word.")
    message: _Message = Field("", description="What Serve says is wrong.")
    deployments: list[DeploymentStatus] = Field(
        [], max_length=16, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]}, description="Its deployments."
    )


class LastError(_Part):
    """What failed last, kept until it works."""

    reason: _Name = Field(description="Why, in one word.")
    message: _Message = Field("", description="Why, in a sentence.")
    since: str = Field(
        max_length=64, json_schema_extra={"format": "date-time"}, description="When it failed for the first time."
    )


class Progress(_Part):
    """The last step forward, from which the deadline of progress is counted."""

    state: _Message = Field(description="What had come about.")
    since: str = Field(max_length=64, json_schema_extra={"format": "date-time"}, description="When.")


class Status(_Part):
    """What is, as far as the operator sees it; written by nobody else."""

    observed_generation: int | None = Field(
        None, ge=0, le=2**63 - 1, description="The generation of spec that everything below is about."
    )
    conditions: list[Condition] = Field(
        [], max_length=32, json_schema_extra={"x-kubernetes-list-map-keys": ["type"]}, description="What is so."
    )
    urls: Urls | None = Field(None, description="Where requests go.")
    ray_cluster: RayClusterStatus | None = Field(None, description="The Ray cluster that serves.")
    replicas: int | None = Field(None, ge=0, le=2**31 - 1, description="Number of engine replicas that exist.")
    ready_replicas: int | None = Field(None, ge=0, le=2**31 - 1, description="Number of them that answer requests.")
    updated_replicas: int | None = Field(
        None, ge=0, le=2**31 - 1, description="Number of them that run the newest configuration."
    )
    selector: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Label selector of the engine pods, for the scale subresource."
    )
    config_hash: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Hash of the configuration that Serve accepted last."
    )
    config_generation: int | None = Field(
        None, ge=0, le=2**63 - 1, description="The generation of spec that this configuration is of."
    )
    drift_corrections: list[_Time] = Field(
        [], max_length=16, description="When somebody else's configuration was set back, of late."
    )
    progress: Progress | None = Field(None, description="The last step forward, and when.")
    applications: list[ApplicationStatus] = Field(
        [],
        max_length=8,
        json_schema_extra={"x-kubernetes-list-map-keys": ["name"]},
        description="The Serve application, by Serve's own word.",
    )
    last_error: LastError | None = Field(None, description="What failed last, kept until it works.")
