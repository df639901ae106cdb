"""Serve applications that tests deploy on a real Ray."""
