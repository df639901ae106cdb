"""Fakes of the systems that tests do not start, harnesses around our own parts, and real clusters for e2e."""
