"""``status`` of a ``ServingDeployment``, which only the operator writes."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

LIMIT = 1024
"""Maximum characters of a message. The operator cuts longer messages of Ray."""

_Url = Annotated[str, Field(max_length=2048)]
_Name = Annotated[str, Field(max_length=253)]
_Message = Annotated[str, Field(max_length=LIMIT)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Condition(_Part):
    """One statement that is true, false or unknown."""

    type: str = Field(
        min_length=1, max_length=316, description="Type of the condition: Ready, Available, or a part of them."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Generation of spec that the condition describes."
    )
    last_transition_time: str = Field(
        max_length=64, json_schema_extra={"format": "date-time"}, description="Time of the last change of `status`."
    )
    reason: str = Field(
        min_length=1,
        max_length=LIMIT,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Reason in one word; docs/troubleshooting.md lists a remedy for each.",
    )
    message: str = Field(max_length=32768, description="Reason in a sentence.")


class Urls(_Part):
    """Addresses of the endpoint and of Ray's dashboard."""

    http: _Url | None = Field(None, description="Base of OpenAI's interface, with `/v1`.")
    grpc: _Url | None = Field(None, description="HOST:PORT of `octavo.v1.Inference`.")
    dashboard: _Url | None = Field(None, description="Ray's dashboard.")


_Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]


class DrainingCluster(_Part):
    """A cluster that drains."""

    name: _Name = Field(description="Name of the RayCluster.")
    since: str = Field(
        max_length=64,
        json_schema_extra={"format": "date-time"},
        description="Time since which the cluster drains its streams.",
    )


class RayClusterStatus(_Part):
    """The Ray cluster that serves, and the cluster that replaces it."""

    name: _Name | None = Field(None, description="Name of the RayCluster, in managed mode.")
    mode: Literal["Managed", "External"] | None = Field(None, description="Managed by the operator, or external.")
    address: _Url | None = Field(None, description="Address of its dashboard.")
    ray_version: Annotated[str, Field(max_length=64)] | None = Field(None, description="Ray version of the cluster.")
    image: Annotated[str, Field(max_length=512)] | None = Field(
        None, description="Image of the cluster's pods; it does not change while the cluster exists."
    )
    active_hash: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Hash of the spec fields that the serving cluster was created from."
    )
    pending_hash: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Hash of the spec fields of the cluster that is being created."
    )
    draining: list[DrainingCluster] = Field(
        [],
        max_length=16,
        json_schema_extra={"x-kubernetes-list-map-keys": ["name"]},
        description="Clusters that drain before they are deleted.",
    )


class DeploymentStatus(_Part):
    """One deployment of the application: engines or gateways."""

    name: _Name = Field(description="Engine or Gateway.")
    status: _Name = Field(description="Status as Ray Serve reports it.")
    replicas: dict[str, Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(
        {}, max_length=16, description="Number of replicas by state, as Ray Serve reports it."
    )


class ApplicationStatus(_Part):
    """One Ray Serve application."""

    name: _Name = Field(description="Name of the application in Ray Serve.")
    status: _Name = Field(description="Status as Ray Serve reports it.")
    message: _Message = Field("", description="Error that Ray Serve reports.")
    deployments: list[DeploymentStatus] = Field(
        [],
        max_length=16,
        json_schema_extra={"x-kubernetes-list-map-keys": ["name"]},
        description="Deployments of the application.",
    )


class LastError(_Part):
    """The last failure, kept until the operation succeeds."""

    reason: _Name = Field(description="Reason in one word.")
    message: _Message = Field("", description="Reason in a sentence.")
    since: str = Field(
        max_length=64, json_schema_extra={"format": "date-time"}, description="Time of the first failure."
    )


class Progress(_Part):
    """The last progress. `progressDeadlineSeconds` counts from it."""

    state: _Message = Field(description="State that was reached, as the operator compares it.")
    since: str = Field(
        max_length=64, json_schema_extra={"format": "date-time"}, description="Time at which the state was reached."
    )


class Status(_Part):
    """State of the deployment as the operator observes it. Only the operator writes it."""

    observed_generation: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Generation of spec that this status describes."
    )
    conditions: list[Condition] = Field(
        [],
        max_length=32,
        json_schema_extra={"x-kubernetes-list-map-keys": ["type"]},
        description="Conditions of the deployment.",
    )
    urls: Urls | None = Field(None, description="Addresses for requests.")
    ray_cluster: RayClusterStatus | None = Field(None, description="The Ray cluster that serves.")
    replicas: int | None = Field(None, ge=0, le=2**31 - 1, description="Number of engine replicas that exist.")
    ready_replicas: int | None = Field(
        None, ge=0, le=2**31 - 1, description="Number of engine replicas that answer requests."
    )
    updated_replicas: int | None = Field(
        None, ge=0, le=2**31 - 1, description="Number of engine replicas that run the newest configuration."
    )
    selector: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Label selector of the engine pods, for the scale subresource."
    )
    config_hash: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="Hash of the configuration that Serve accepted last."
    )
    config_generation: int | None = Field(
        None, ge=0, le=2**63 - 1, description="Generation of spec that this configuration was created from."
    )
    drift_corrections: list[_Time] = Field(
        [],
        max_length=16,
        description="Times of the latest reverts of a configuration that another client put into Ray Serve.",
    )
    progress: Progress | None = Field(None, description="The last progress and its time.")
    applications: list[ApplicationStatus] = Field(
        [],
        max_length=8,
        json_schema_extra={"x-kubernetes-list-map-keys": ["name"]},
        description="The application as Ray Serve reports it.",
    )
    last_error: LastError | None = Field(None, description="The last failure, kept until the operation succeeds.")
