"""The operator that reconciles ServingDeployments."""
