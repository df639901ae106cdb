"""First create of a managed deployment: its steps, its deadline, and a missing KubeRay."""

from octavo_operator.model.actions import DeployApplication
from octavo_operator.model.observed import Reach
from octavo_testing.operator.plan_world import kinds


def test_first_create_waits_for_the_head_before_it_deploys(world):
    w = world()
    first = w.step()
    assert kinds(first.actions) == ["CreateSecret", "RayCluster", "Service"]
    assert first.delay == 2
    assert w.condition("Ready") == ("False", "RayClusterPending")
    assert w.step().actions == ()
    assert w.condition("RayClusterReady") == ("False", "HeadNotReady")
    w.head_up()
    w.ray.reach = Reach.UNREACHABLE
    assert w.step().actions == ()
    w.ray.reach = Reach.OK
    (put,) = w.step().actions
    assert isinstance(put, DeployApplication)
    assert put.proxy_location == "Disabled"
    w.step()
    assert w.condition("Ready") == ("False", "Deploying")
    assert w.condition("Progressing")[0] == "True"
    assert w.has("Reconciling")
    w.run_apps()
    made = w.step()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Progressing") == ("False", "NewGenerationAvailable")
    assert not w.has("Reconciling")
    assert made.delay == 30
    assert w.reasons == ["RayClusterCreated", "ServeConfigApplied", "RolloutComplete"]
    assert w.status["urls"]["http"] == "http://qwen.shop.svc:8000/v1"


def test_not_ready_while_no_gateway_is_behind_the_service(world):
    w = world()
    w.settle()
    w.app.replicas["Gateway"] = []
    w.step()
    assert w.condition("RouterReady") == ("False", "NoEndpoints")
    assert w.condition("Ready")[0] == "False"
    assert w.condition("Available") == ("False", "NoEndpoints")


def test_progress_puts_the_deadline_off(world):
    w = world({"rollout": {"progressDeadlineSeconds": 100}})
    w.step()
    w.tick(90)
    w.step()
    w.head_up()
    w.tick(20)
    w.step()
    assert not w.has("Stalled")
    w.step()
    w.tick(105)
    made = w.step()
    assert w.condition("Stalled") == ("True", "ProgressDeadlineExceeded")
    assert w.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert made.delay == 10
    w.run_apps()
    w.step()
    assert w.condition("Ready") == ("True", "Serving")
    assert not w.has("Stalled")


def test_without_progress_it_reconciles_less_often(world):
    w = world()
    w.step()
    delays = []
    for _ in range(30):
        w.tick(10)
        delays.append(w.step().delay)
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (2, 10)


def test_without_kuberay_it_names_the_command_and_waits_for_it(world):
    w = world()
    w.install_kuberay(installed=False)
    w.step()
    assert w.condition("RayClusterReady") == ("False", "KubeRayNotInstalled")
    assert "helm install kuberay-operator" in w.message("RayClusterReady")
    assert w.condition("Stalled") == ("True", "KubeRayNotInstalled")
    assert "KubeRayNotInstalled" in w.reasons
    w.install_kuberay(installed=True)
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")
