"""Vocabulary shared by every layer: errors, target, passport, key, and the wire contract."""
