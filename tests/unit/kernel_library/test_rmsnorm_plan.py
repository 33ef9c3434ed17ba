"""Row plans: how many rows pass through UB at a time, and what is refused."""

from __future__ import annotations

import itertools

import pytest

from kaas.kernel_library.families.rmsnorm import RmsNormSpec, plan_of
from kaas.kernel_library.spec import DTYPE_BYTES
from kaas.kernel_library.targets import target_named
from kaas.kernel_library.vector.row_plan import padded
from kaas.proto.errors import DoesNotFit

TARGET = target_named("Ascend950DT_9581")


def test_every_plan_fits_ub_and_keeps_transfers_in_flight() -> None:
    for hidden, dtype, residual, weight in itertools.product(
        (64, 80, 576, 4096, 7168, 16384),
        DTYPE_BYTES.keys() & {"bf16", "fp16", "fp32"},
        (False, True),
        (False, True),
    ):
        plan = plan_of(RmsNormSpec(hidden=hidden, dtype=dtype, residual=residual, weight=weight), TARGET)
        row = padded(hidden) * DTYPE_BYTES[dtype]
        assert plan.stages * plan.rows * row * (1 + residual) + row * weight <= TARGET.ub_bytes
        if hidden <= 7168:
            assert plan.stages >= 2


def test_a_row_that_does_not_fit_is_refused_with_the_widest_that_does() -> None:
    spec = RmsNormSpec(hidden=32768, dtype="fp32", residual=True)
    with pytest.raises(DoesNotFit) as refusal:
        spec.check_target(TARGET)
    assert refusal.value.details["excess_bytes"] == 3 * 4 * 32768 - TARGET.ub_bytes
    widest = int(str(refusal.value.details["legal"]).split()[2])
    RmsNormSpec(hidden=widest, dtype="fp32", residual=True).check_target(TARGET)
    with pytest.raises(DoesNotFit):
        RmsNormSpec(hidden=widest + 64, dtype="fp32", residual=True).check_target(TARGET)
