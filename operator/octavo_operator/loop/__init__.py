"""The control loop: watches of Kubernetes, the work queue and its back-off."""
