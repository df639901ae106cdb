"""Access to Kubernetes: the API client, its errors, Events and token Secrets."""
