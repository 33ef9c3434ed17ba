"""Buffers of the sparse attention indexer's kernels: what they take, and parts that are too small."""

from __future__ import annotations

import msgspec
import pytest

from kaas.kernel_library.attention.indexer_fields import tiles_of
from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec
from kaas.kernel_library.families.paged_mqa_logits import PagedMqaLogitsSpec
from kaas.kernel_library.targets import target_named
from kaas.proto.errors import DoesNotFit

TARGET = target_named("Ascend950DT_9581")


@pytest.mark.parametrize("heads", range(4, 68, 4))
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["e4m3", "e2m1"])
def test_every_shape_fits_and_holds_whole_queries(heads: int, head_dim: int, dtype: str) -> None:
    spec = MqaLogitsSpec(heads=heads, head_dim=head_dim, dtype=dtype)
    spec.check_target(TARGET)
    tiles = tiles_of(spec)
    assert tiles.queries >= 1
    assert tiles.queries * heads <= tiles.rows <= 64
    assert tiles.rows % 16 == 0


@pytest.mark.parametrize("spec", [MqaLogitsSpec(), PagedMqaLogitsSpec()], ids=lambda spec: spec.family)
@pytest.mark.parametrize("buffer", ["L1", "L0A", "L0B", "L0C", "UB"])
def test_a_part_with_a_smaller_buffer_is_refused_by_its_name(
    spec: MqaLogitsSpec | PagedMqaLogitsSpec, buffer: str
) -> None:
    needed = tiles_of(spec).buffer_bytes()[buffer]
    small = msgspec.structs.replace(TARGET, **{f"{buffer.lower()}_bytes": needed - 100})
    with pytest.raises(DoesNotFit) as refused:
        spec.check_target(small)
    assert (refused.value.details["buffer"], refused.value.details["excess_bytes"]) == (buffer, 100)
