"""Schemas made from the types: walk over the fields, resource definition, reference pages and the editors' schema."""
