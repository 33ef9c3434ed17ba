"""Reference of kv_record_unpack in plain torch, exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kaas.kernel_library.families.kv_record_unpack import KvRecordUnpackSpec
from kaas.kernel_library.references.kv_records import unpack_records


def reference(spec: KvRecordUnpackSpec, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``x`` of every record; one rounding makes bf16 of it."""
    return {"x": unpack_records(inputs["records"], spec.fmt)}
