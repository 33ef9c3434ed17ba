"""Row plans of activations and norms: what is refused names a width that fits."""

from __future__ import annotations

from typing import Any

import pytest

from kaas.kernel_library.registry import parse_spec
from kaas.kernel_library.targets import target_named
from kaas.proto.errors import DoesNotFit

TARGET = target_named("Ascend950DT_9581")
PAIRS = {"round_sf": True, "scale_dtype": "e8m0x2", "col_major": True}
TOO_WIDE: list[dict[str, Any]] = [
    {"family": "swiglu", "dtype": "fp32"},
    {
        "family": "swiglu",
        "dtype": "fp32",
        "weights": True,
        "experts": 64,
        "clamp": 1.0,
        "count_clamped": True,
    },
    {"family": "swiglu", "cast": "e4m3"},
    {"family": "swiglu", "cast": "e2m1", **PAIRS},
    {"family": "swiglu", "cast": "e4m3", "dtype": "fp32", "col_major": True},
    {"family": "swiglu_backward", "dtype": "fp32", "weights": True, "experts": 8},
    {"family": "swiglu_backward", "dtype": "e4m3", "dtype_out": "fp32", "recompute": True},
    {"family": "swiglu_backward", "dtype": "e4m3", "cast": "e4m3", "recompute": True},
    {"family": "swiglu_backward", "dtype": "fp32", "cast": "e2m1", **PAIRS},
    {"family": "rmsnorm", "dtype": "fp32", "residual": True, "rstd": True},
    {"family": "rmsnorm", "dtype": "fp32", "residual": True, "cast": "e4m3", "bf16_output": True},
    {"family": "rmsnorm", "dtype": "fp32", "residual": True, "cast": "e4m3", "col_major": True},
    {"family": "rmsnorm_backward"},
    {"family": "rmsnorm_backward", "dtype": "fp32", "weight": False, "residual_grad": True},
]


@pytest.mark.parametrize("fields", TOO_WIDE, ids=lambda fields: "-".join(map(str, fields.values())))
def test_a_row_that_does_not_fit_is_refused_with_a_width_that_does(fields: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFit) as refusal:
        parse_spec(fields | {"hidden": 32768}).check_target(TARGET)
    widest = int(str(refusal.value.details["legal"]).split()[2])
    assert widest >= 4096
    parse_spec(fields | {"hidden": widest}).check_target(TARGET)
