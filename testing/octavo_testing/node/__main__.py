"""``python -m octavo_testing.node up`` leaves a node running until ``down``."""

import argparse
import sys
import time

from octavo_testing.kube.kubectl import Refused
from octavo_testing.kube.tools import NODE_TIER, ToolsMissing, ensure
from octavo_testing.node import node, requirements
from octavo_testing.node.node import HOME, Held
from octavo_testing.processes import StartFailed

NAMESPACE = "octavo"


def up(*, bare: bool) -> None:
    if reason := requirements.reason_against():
        raise ToolsMissing(reason)
    if (running := node.find()) is not None:
        print("The node runs already.")
    else:
        began = time.monotonic()
        requirements.install()
        ensure(*NODE_TIER)
        built = time.monotonic()
        if built - began > 1:
            print(f"Programs were built or installed in {built - began:.0f} s.")
        try:
            running = node.start(outlive=True)
        except BaseException:
            print(f"It did not start; the logs are in {HOME}. `make node-down` removes them.", file=sys.stderr)
            raise
        print(f"The node was ready in {time.monotonic() - built:.1f} s.", flush=True)
    running.prepare(NAMESPACE)
    if not bare:
        loading = time.monotonic()
        node.load(running, node.archives())
        print(f"The images of operator and server were loaded in {time.monotonic() - loading:.1f} s.")
    print(
        f"Logs and certificates are in {HOME}; `make node-down` ends and removes everything.\n"
        f"Pods and Services are reached from here by their addresses. In the namespace {NAMESPACE}, which takes only"
        " restricted pods,\nRay's pods get this checkout's environment mounted, and little is requested for them.\n\n"
        f"export KUBECONFIG={running.cluster.admin}\n"
        "helm install octavo helm/octavo --namespace octavo --create-namespace\n"
        "kubectl apply --namespace octavo -f manifests/samples/01-smallest.yaml"
    )


def down() -> None:
    print("The node is gone." if node.stop() else "No node runs.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("up", "down"))
    parser.add_argument("--bare", action="store_true", help="without the images of operator and server")
    arguments = parser.parse_args()
    try:
        if arguments.command == "up":
            up(bare=arguments.bare)
        else:
            down()
    except (ToolsMissing, StartFailed, Refused, Held, AssertionError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
