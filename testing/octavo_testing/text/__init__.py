"""Texts, vocabularies and files for tests of tokenizers."""
