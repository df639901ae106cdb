"""The resource ``ServingDeployment``: its document, its status, and the Serve application that it becomes."""
