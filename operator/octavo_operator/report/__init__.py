"""The status of a deployment: conditions judged from an outcome, and the status document. All are pure."""
