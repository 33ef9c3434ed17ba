"""The composites, one per module, each named like its module."""
