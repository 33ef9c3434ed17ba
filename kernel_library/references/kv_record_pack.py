"""Reference of kv_record_pack in plain torch, exact to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kaas.kernel_library.families.kv_record_pack import KvRecordPackSpec
from kaas.kernel_library.references.kv_records import pack_records


def reference(spec: KvRecordPackSpec, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """``records`` of every row."""
    return {"records": pack_records(inputs["x"], spec.fmt)}
