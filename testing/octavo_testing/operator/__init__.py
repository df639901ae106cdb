"""Fakes and simulated worlds for the operator."""
