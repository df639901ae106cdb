"""Builders of the Kubernetes objects of one deployment, and comparison with existing objects. All are pure."""
