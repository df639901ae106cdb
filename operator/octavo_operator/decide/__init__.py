"""Decisions of one reconcile: create, deploy, switch, correct, stop and delete. All are pure."""
