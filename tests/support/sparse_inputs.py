"""Inputs of sparse attention kernels: queries, keys or caches of records, and index lists with holes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kaas.kernel_library.families.mla_sparse_decode import MlaSparseDecodeSpec
from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec
from kaas.kernel_library.references.kv_records import pack_records

VALUES = 512


def index_lists(generator: torch.Generator, records: int, *shape: int, holes: float = 0.1) -> torch.Tensor:
    """Random indices of ``records`` records; ``holes`` of them are negative or too large."""
    chosen = torch.randint(0, max(records, 1), shape, generator=generator)
    kinds = torch.tensor([-1, -(2**31), records, 2**31 - 1])
    holed = kinds[torch.randint(0, len(kinds), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < holes, holed, chosen).int()


def prefill_inputs(
    spec: MlaSparsePrefillSpec,
    tokens: int,
    kv_tokens: int,
    *,
    lengths: Sequence[int] | None = None,
    amplitude: float = 0.3,
    integers: bool = False,
    holes: float = 0.1,
    seed: int = 0,
) -> dict[str, Any]:
    """A call of ``spec``; ``lengths`` are those of ``topk_length``, random ones without."""
    generator = torch.Generator().manual_seed(seed)
    inputs: dict[str, Any] = {
        "q": _values(generator, (tokens, spec.heads, spec.d_qk), integers, 0.5),
        "kv": _values(generator, (kv_tokens, 1, spec.d_qk), integers, amplitude),
        "indices": index_lists(generator, kv_tokens, tokens, 1, spec.topk, holes=holes),
        "softmax_scale": spec.d_qk**-0.5,
    }
    if spec.attn_sink:
        inputs["attn_sink"] = torch.randn(spec.heads, generator=generator) * 2
    if spec.topk_length:
        inputs["topk_length"] = _lengths(generator, lengths, tokens, spec.topk)
    return inputs


def decode_inputs(
    spec: MlaSparseDecodeSpec,
    requests: int,
    *,
    blocks: int = 7,
    page: int = 64,
    extra_blocks: int = 5,
    extra_page: int = 16,
    lengths: Sequence[int] | None = None,
    extra_lengths: Sequence[int] | None = None,
    holes: float = 0.1,
    amplitude: float = 0.3,
    seed: int = 0,
) -> dict[str, Any]:
    """A call of ``spec`` on caches of random records."""
    generator = torch.Generator().manual_seed(seed)
    tokens = (requests, spec.s_q)
    inputs: dict[str, Any] = {
        "q": _values(generator, (*tokens, spec.heads, VALUES), False, 0.5),
        "k_cache": random_cache(generator, blocks, page, "fp8", amplitude),
        "indices": index_lists(generator, blocks * page, *tokens, spec.topk, holes=holes),
        "softmax_scale": VALUES**-0.5,
    }
    if spec.topk_length:
        inputs["topk_length"] = _lengths(generator, lengths, requests, spec.topk)
    if spec.extra != "none":
        inputs["extra_k_cache"] = random_cache(generator, extra_blocks, extra_page, spec.extra, amplitude)
        inputs["extra_indices"] = index_lists(
            generator, extra_blocks * extra_page, *tokens, spec.extra_topk, holes=holes
        )
    if spec.extra_topk_length:
        inputs["extra_topk_length"] = _lengths(generator, extra_lengths, requests, spec.extra_topk)
    if spec.attn_sink:
        inputs["attn_sink"] = torch.randn(spec.heads, generator=generator) * 2
    return inputs


def random_cache(
    generator: torch.Generator, blocks: int, page: int, fmt: str, amplitude: float
) -> torch.Tensor:
    """Bytes [blocks, page, 1, bytes] of records of normal values."""
    rows = _values(generator, (blocks * page, VALUES), False, amplitude)
    return pack_records(rows, fmt).view(blocks, page, 1, -1)


def _lengths(generator: torch.Generator, given: Sequence[int] | None, count: int, topk: int) -> torch.Tensor:
    if given is None:
        return torch.randint(0, topk + 1, (count,), generator=generator).int()
    return torch.tensor(given, dtype=torch.int32)


def _values(
    generator: torch.Generator, shape: tuple[int, ...], integers: bool, amplitude: float
) -> torch.Tensor:
    if integers:
        return torch.randint(-1, 2, shape, generator=generator).bfloat16()
    return (torch.randn(shape, generator=generator) * amplitude).bfloat16()
