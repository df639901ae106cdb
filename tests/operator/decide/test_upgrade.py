"""Upgrade of the operator: other defaults and other templates change nothing that exists."""

from octavo_operator.decide.application import config_hash
from octavo_operator.model.defaults import Defaults


def _hash_of(config):

    return config_hash(config)


def test_an_operator_upgrade_changes_no_child_and_no_configuration(serving):
    w = serving({"replicas": 2})
    w.defaults = Defaults(
        image="octavo:9", ray_version="2.99.0", operator_namespace="octavo", operator_labels={"app": "op"}
    )
    w.app.config["deployments"][0]["user_config"]["from_the_old_operator"] = True
    w.status["configHash"] = _hash_of(w.app.config)
    made = w.step()
    assert made.actions == ()
    assert w.condition("Ready") == ("True", "Serving")
    w.edit(endpoint__service={"type": "NodePort"})
    w.step()
    assert w.cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] == "octavo:1"


def test_a_new_cluster_takes_the_new_default_image(serving):
    w = serving()
    w.defaults = Defaults(image="octavo:9", ray_version="2.99.0")
    w.edit(resources={"limits": {"cpu": 3}})
    w.settle()
    assert w.cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] == "octavo:9"
    assert w.cluster["spec"]["rayVersion"] == "2.99.0"


def test_a_cluster_made_by_another_version_keeps_its_templates(serving):
    w = serving()
    w.cluster["metadata"]["annotations"]["serving.octavo.dev/template-hash"] = "of-an-older-version"
    w.group("engine")["template"]["spec"]["terminationGracePeriodSeconds"] = 60
    assert w.step().actions == ()


def test_a_template_edited_after_an_upgrade_keeps_its_first_image(serving):
    w = serving()
    w.defaults = Defaults(image="octavo:9", ray_version="2.99.0")
    w.group("engine")["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    w.step()
    template = w.group("engine")["template"]["spec"]
    assert (template["terminationGracePeriodSeconds"], template["containers"][0]["image"]) == (3630, "octavo:1")
    assert w.cluster["spec"]["rayVersion"] == "2.60.0"
