"""What docs/benchmarks.md says beside the figures."""

from __future__ import annotations

HEAD = """# Benchmarks
"""
BENCHMARKS: dict[str, tuple[str, str]] = {}
PROFILES: tuple[tuple[str, str, str], ...] = ()
