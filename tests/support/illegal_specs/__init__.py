"""Specs that must be refused, one module per family.

``CASES`` holds (record, field that the refusal names); ``DOES_NOT_FIT`` holds (record, field, buffer) of
specs that are well-formed and too large for an Ascend950DT_9581.
"""
