"""Facts in the document of a ServingDeployment, for readers and planners alike."""

from octavo_api.resource.deployment import ServingDeployment
from octavo_operator.model import names
from octavo_operator.model.observed import Resource


def parse_spec(resource: Resource) -> ServingDeployment:
    """Read the part of the document that users write; raise ``ConfigurationError`` if it is invalid."""
    fields = ("apiVersion", "kind", "metadata", "spec")
    return ServingDeployment.read({name: resource.document[name] for name in fields if name in resource.document})


def force_delete_requested(resource: Resource) -> bool:
    """Return True if the deletion must end after one try, even if that try fails."""
    return resource.annotations.get(names.FORCE_DELETE_ANNOTATION) == "true"
