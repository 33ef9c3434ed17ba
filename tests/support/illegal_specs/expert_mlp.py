"""Illegal expert_mlp specs."""

from __future__ import annotations

from typing import Any

MLP: dict[str, Any] = {"family": "expert_mlp", "groups": 4, "hidden": 512, "intermediate": 256}
TILE = {"block_m": 64, "block_n": 256, "block_k": 128}

CASES: list[tuple[dict[str, Any], str]] = [
    (MLP | {"groups": 0}, "groups"),
    (MLP | {"m": 2**22 + 1}, "m"),
    (MLP | {"hidden": 96}, "hidden"),
    (MLP | {"hidden": "dynamic"}, "hidden"),
    (MLP | {"hidden": 2**14 + 64}, "hidden"),
    (MLP | {"intermediate": 32}, "intermediate"),
    (MLP | {"intermediate": 192, "dtype_w": "e4m3"}, "intermediate"),
    (MLP | {"dtype_w": "bf16"}, "dtype_w"),
    (MLP | {"clamp": -1.0}, "clamp"),
    (MLP | {"tile": TILE | {"block_n": 128}}, "tile.block_n"),
    (MLP | {"tile": TILE | {"block_k": 96}}, "tile.block_k"),
    (MLP | {"tile": TILE | {"block_m": 24}}, "tile.block_m"),
    ({"family": "expert_mlp", "hidden": 512}, "intermediate"),
]
DOES_NOT_FIT: list[tuple[dict[str, Any], str, str]] = [
    (MLP | {"tile": TILE | {"block_m": 256}}, "tile", "UB"),
    (MLP | {"tile": TILE | {"block_k": 1024}}, "tile", "L1"),
]
