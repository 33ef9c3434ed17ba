"""Target: the NPU a kernel is compiled for."""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One Ascend SKU as the compiler sees it. Core counts are baked into binaries, hence part of the key.

    Sizes are bytes per core; ``l2_bytes`` is per device. ``npu_arch`` is bisheng's ``--npu-arch`` value.
    """

    soc_name: str
    npu_arch: str
    cube_cores: int
    vector_cores: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int
    l1_bytes: int
    ub_bytes: int
    l2_bytes: int
