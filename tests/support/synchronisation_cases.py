"""Kernels of many shapes with small inputs, whose loops run longer than their rings have slots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from support import ep_synchronisation as ep
from support import indexer_synchronisation as indexer
from support import sparse_inputs as sparse
from support.block_values import random_scales, random_values
from support.fused_positions import fused_positions
from support.kernel_checks import EXACT, Close, Comparison, reference_of, run_once, tensor_dtype
from support.mla_inputs import decode_inputs, prefill_inputs
from support.record_values import random_records, wide_rows
from support.twin_kernels import TwinKernel

from kaas.kernel_library.attention.attention_tiles import AttentionTile
from kaas.kernel_library.attention.sparse_tiles import SparseTile
from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.aux_fi import AuxFiSpec
from kaas.kernel_library.families.batched_gemm import BatchedGemmSpec
from kaas.kernel_library.families.block_scaled_gemm import BlockScaledGemmSpec
from kaas.kernel_library.families.cast import CastSpec
from kaas.kernel_library.families.cast_back import CastBackSpec
from kaas.kernel_library.families.engram_gate import EngramGateSpec
from kaas.kernel_library.families.engram_hash import EngramHashSpec
from kaas.kernel_library.families.expand_to_fused import ExpandToFusedSpec
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec
from kaas.kernel_library.families.k_grouped_gemm import KGroupedGemmSpec
from kaas.kernel_library.families.kv_record_pack import KvRecordPackSpec
from kaas.kernel_library.families.kv_record_unpack import KvRecordUnpackSpec
from kaas.kernel_library.families.mhc_sinkhorn import MhcSinkhornSpec
from kaas.kernel_library.families.mhc_sinkhorn_backward import MhcSinkhornBackwardSpec
from kaas.kernel_library.families.mla_decode import MlaDecodeSpec
from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec
from kaas.kernel_library.families.mla_sparse_decode import MlaSparseDecodeSpec
from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec
from kaas.kernel_library.families.moe_gate import MoeGateSpec
from kaas.kernel_library.families.reduce_fused import ReduceFusedSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.kernel_library.families.rmsnorm_backward import RmsNormBackwardSpec
from kaas.kernel_library.families.rope import RopeSpec
from kaas.kernel_library.families.swiglu import SwigluSpec
from kaas.kernel_library.families.topk_gate import TopkGateSpec
from kaas.kernel_library.families.topk_select import SelectTile, TopkSelectSpec
from kaas.kernel_library.references.number_formats import pack_pairs
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.vector.row_plan import RowTile

NEAR = Close(relative=2.0**-6, absolute=2.0**-6)
"""Wide enough for every rounding: what races leave is elsewhere."""
CUBE_TILE = GemmTile(block_m=16, block_n=32, block_k=32)
SCALED_TILE = GemmTile(block_m=32, block_n=64, block_k=128)
ROWS = RowTile(rows=2, stages=2)
FEW_KEYS = SparseTile(keys=64)
QUERIES = AttentionTile(rows=32, keys=32)
TOKENS = 4500
"""Their positions arrive in more batches than one."""
TALL_BLOCKS = 64 * 2 * 8 * 5 + 5
"""Tokens of a kernel that takes two blocks of 64 at a time on eight cores, in more turns than slots."""

Inputs = Callable[[torch.Generator], Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """One kernel and its inputs by parameter name, one launch after another."""

    spec: KernelSpec
    make: Inputs
    compare: Comparison | Mapping[str, Comparison] = EXACT
    sizes: Mapping[str, int] = field(default_factory=dict)
    more: tuple[Inputs, ...] = ()

    @functools.cached_property
    def _launches(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        made = [make(torch.Generator().manual_seed(3)) for make in (self.make, *self.more)]
        return [(inputs, reference_of(self.spec, inputs)) for inputs in made]

    def run(self, built: TwinKernel) -> None:
        """Raise DeviceError for what the twin finds, AssertionError for a wrong number."""
        for inputs, expected in self._launches:
            run_once(built, self.spec, inputs, expected, self.compare, sizes=self.sizes)


def _whole(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """-2 .. 2: sums of products are exact."""
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


def _drawn(generator: torch.Generator, dtype: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(tensor_dtype(dtype))


def _gemm(
    layout: str = "nt",
    dtype: str = "bf16",
    dtype_d: str = "bf16",
    m: int = 112,
    n: int = 128,
    k: int = 224,
    **more: Any,
) -> Case:
    spec = GemmSpec(
        m=m, n=n, k=k, dtype_a=dtype, dtype_b=dtype, dtype_d=dtype_d, layout=layout, tile=CUBE_TILE, **more
    )

    def make(generator: torch.Generator) -> Mapping[str, Any]:
        kind = tensor_dtype(dtype)
        inputs: dict[str, Any] = {
            "a": _whole(generator, kind, *((k, m) if layout[0] == "t" else (m, k))),
            "b": _whole(generator, kind, *((n, k) if layout[1] == "t" else (k, n))),
        }
        if spec.accumulate:
            inputs["d"] = _whole(generator, tensor_dtype(dtype_d), m, n)
        if spec.alpha:
            inputs["alpha"] = 2.0
        return inputs

    return Case(spec, make)


def _block_scaled(accumulate: bool) -> Case:
    m, n, k = 151, 224, 416
    spec = BlockScaledGemmSpec(m=m, n=n, k=k, tile=SCALED_TILE, accumulate=accumulate)

    def make(generator: torch.Generator) -> Mapping[str, Any]:
        def scales(rows: int) -> torch.Tensor:
            stored = torch.randint(126, 129, (rows, k // 32), generator=generator)
            return pack_pairs(stored.to(torch.uint8))

        inputs: dict[str, Any] = {
            "a": _whole(generator, torch.float32, m, k).to(torch.float8_e4m3fn),
            "b": _whole(generator, torch.float32, n, k).to(torch.float8_e4m3fn),
            "sfa": scales(m),
            "sfb": scales(n),
        }
        if accumulate:
            inputs["d"] = _whole(generator, tensor_dtype(spec.dtype_d), m, n)
        return inputs

    return Case(spec, make, sizes={"m": m, "n": n})


def _grouped(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "a": _whole(generator, torch.bfloat16, 512, 104),
        "b": _whole(generator, torch.bfloat16, 3, 83, 104),
        "d": torch.zeros((512, 83), dtype=torch.bfloat16),
        "grouped_layout": torch.tensor([40, 40, 300], dtype=torch.int32),
    }


def _grouped_over_k(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "a": _whole(generator, torch.bfloat16, 768, 83),
        "b": _whole(generator, torch.bfloat16, 768, 105),
        "d": _whole(generator, torch.float32, 3, 83, 105),
        "grouped_layout": torch.tensor([40, 256, 600], dtype=torch.int32),
    }


def _batched(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "a": _whole(generator, torch.bfloat16, 83, 3, 171),
        "b": _whole(generator, torch.bfloat16, 3, 104, 171),
    }


def _norm(generator: torch.Generator) -> Mapping[str, Any]:
    x, residual = (_drawn(generator, "bf16", 1536, 256) for _ in range(2))
    return {"x": x, "residual": residual, "weight": _drawn(generator, "bf16", 256)}


def _norm_backward(generator: torch.Generator, tokens: int = 613) -> Mapping[str, Any]:
    inputs = {name: _drawn(generator, "bf16", tokens, 576) for name in ("dy", "x", "residual_grad")}
    inputs["rstd"] = 1 / (inputs["x"].float().square().mean(-1) + 1e-6).sqrt()
    inputs["weight"] = _drawn(generator, "bf16", 576)
    inputs["dweight"] = _drawn(generator, "fp32", 576)
    return inputs


def _swiglu(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "x": _drawn(generator, "bf16", 700, 512) * 5,
        "weights": torch.rand(700, generator=generator),
        "expert_ends": torch.tensor([40, 40, 230, 650], dtype=torch.int32),
        "clamped": torch.tensor([5, 0, 2**40, -7]),
    }


def _moe_gate(generator: torch.Generator) -> Mapping[str, Any]:
    steps = torch.rand((150, 256), generator=generator).argsort(1)
    return {
        "logits": steps * (8 / 256) - 4,
        "bias": torch.zeros(256),
        "routed_scaling_factor": 2.5,
        "mask": torch.rand(150, generator=generator) < 0.6,
    }


def _expand(generator: torch.Generator) -> Mapping[str, Any]:
    positions, experts = fused_positions(TOKENS, 3, seed=1)
    scales = torch.rand((TOKENS, 3), generator=generator)
    x = random_values(TOKENS, 96, "e4m3", seed=2)
    return {"x": x, "x_scales": scales, "token_topk_to_pos": positions, "pos_to_expert": experts}


def _reduce(generator: torch.Generator) -> Mapping[str, Any]:
    positions, experts = fused_positions(TOKENS, 3, seed=1)
    return {
        "x": _drawn(generator, "bf16", len(experts), 64),
        "x_scales": torch.randn(len(experts), generator=generator),
        "token_topk_to_pos": positions,
        "weights": torch.rand((TOKENS, 3), generator=generator),
    }


def _hash(generator: torch.Generator) -> Mapping[str, Any]:
    def integers(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=generator)

    return {
        "ngram_token_ids": integers(-1, 129280, TALL_BLOCKS, 3).int(),
        "multipliers": integers(-(2**62), 2**62, 2, 3) * 2 + 1,
        "vocab_sizes": integers(1, 2**30, 2, 2, 8).int(),
        "offsets": integers(0, 1000, 2, 16).int(),
    }


def _gate(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "x": _drawn(generator, "bf16", 650, 4, 192),
        "kv": _drawn(generator, "bf16", 650, 5, 192),
        "weight": _drawn(generator, "fp32", 4, 192),
    }


def _rope(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "x": _drawn(generator, "bf16", TOKENS, 1, 64),
        "cos_sin": torch.randn((TOKENS, 64), generator=generator),
        "positions": torch.randint(0, TOKENS, (TOKENS,), generator=generator).int(),
    }


def _select(generator: torch.Generator, rows: int = 60) -> Mapping[str, Any]:
    """Rows that stay in UB and longer ones in turn, each of other values."""
    return {
        "input": _drawn(generator, "bf16", rows, 1400),
        "end": torch.randint(0, 1401, (rows,), generator=generator).int(),
        "idx_oob_fill_value": -1,
        "value_oob_fill_value": -1.0,
    }


def _decode(split: int | None) -> Case:
    spec = MlaDecodeSpec(heads=16, page=16, s_q=2, causal=True, split=split, tile=QUERIES)
    # Cores have a tile without keys behind one with many.
    lengths = (230, 0, 1, 37, 0, 150, 97, 40)
    return Case(spec, lambda generator: decode_inputs(spec, lengths), NEAR)


def _prefill() -> Case:
    spec = MlaPrefillSpec(heads=2, group=2, tile=QUERIES)
    lengths = ((20, 20), (1, 300), (40, 70), (70, 290), (0, 3), (9, 0))
    return Case(spec, lambda generator: prefill_inputs(spec, lengths), NEAR)


def _sparse_decode() -> Case:
    spec = MlaSparseDecodeSpec(
        topk=320, extra="fp4", extra_topk=128, extra_topk_length=True, topk_length=True, tile=FEW_KEYS
    )
    # Cores have a tile without keys between those with many.
    lengths, extra = (320, 0, 1, 70, 0, 300, 64, 10, 320), (128, 3, 0, 128, 0, 65, 128, 0, 1)
    return Case(spec, lambda _: sparse.decode_inputs(spec, 9, lengths=lengths, extra_lengths=extra), NEAR)


def _sparse_prefill() -> Case:
    spec = MlaSparsePrefillSpec(topk=320, attn_sink=True, topk_length=True)
    lengths = (320, 0, 1, 70, 0, 300, 64, 10, 320)
    return Case(spec, lambda _: sparse.prefill_inputs(spec, 9, 200, lengths=lengths), NEAR)


CASES: dict[str, Case] = {
    "gemm": _gemm(),
    "gemm ragged": _gemm(m=107, n=119, k=200),
    "gemm fp32": _gemm("tn", "fp32", "fp32"),
    "gemm vector epilogue": _gemm(accumulate=True, alpha=True),
    "gemm accumulate": _gemm("nn", "fp16", "fp32", accumulate=True),
    "block_scaled_gemm": _block_scaled(accumulate=False),
    "grouped_gemm": Case(GroupedGemmSpec(groups=3, n=83, k=104, tile=CUBE_TILE), _grouped),
    "k_grouped_gemm": Case(KGroupedGemmSpec(groups=3, m=83, n=105, tile=CUBE_TILE), _grouped_over_k),
    "batched_gemm": Case(
        BatchedGemmSpec(expression="bhr,hdr->bhd", b=83, h=3, d=104, r=171, tile=CUBE_TILE), _batched
    ),
    "rmsnorm": Case(RmsNormSpec(hidden=256, residual=True), _norm, NEAR),
    "rmsnorm_backward": Case(
        RmsNormBackwardSpec(hidden=576, residual_grad=True, accumulate=True),
        _norm_backward,
        NEAR,
        more=(functools.partial(_norm_backward, tokens=0),),
    ),
    "cast per token": Case(
        CastSpec(hidden=576, round_sf=True, scale_dtype="e8m0x2", tile=ROWS),
        lambda generator: {"x": random_values(161, 576, "bf16", seed=1)},
    ),
    "cast per channel": Case(
        CastSpec(hidden=608, granularity="per_channel", in_dtype="fp32", tile=RowTile(rows=32, stages=2)),
        lambda generator: {"x": random_values(353, 608, "fp32", seed=1)},
    ),
    "cast_back": Case(
        CastBackSpec(hidden=576, scale_dtype="e8m0x2", tile=ROWS),
        lambda generator: {
            "x": random_values(161, 576, "e4m3", seed=1),
            "x_scales": random_scales(161, 18, "e8m0x2", 2),
        },
    ),
    "swiglu": Case(
        SwigluSpec(hidden=256, weights=True, clamp=4.0, count_clamped=True, experts=4, token_alignment=8),
        _swiglu,
        {"y": NEAR, "clamped": EXACT},
    ),
    "topk_gate": Case(
        TopkGateSpec(experts=72, topk=6, tile=RowTile(rows=4, stages=2)),
        lambda generator: {"scores": (torch.randn((150, 72), generator=generator) * 4).round() / 4},
    ),
    "moe_gate": Case(
        MoeGateSpec(experts=256, topk=8, mask=True, scores=True, tile=RowTile(rows=4, stages=2)),
        _moe_gate,
        {"topk_idx": EXACT, "topk_weights": NEAR, "scores": NEAR},
    ),
    "aux_fi": Case(
        AuxFiSpec(experts=96, topk=6, tile=RowTile(rows=4, stages=2)),
        lambda generator: {
            "topk_idx": torch.randint(-1, 96, (333, 6), generator=generator),
            "num_aux_topk": 5,
        },
        NEAR,
    ),
    "mhc_sinkhorn": Case(
        MhcSinkhornSpec(repeat=3), lambda generator: {"x": _drawn(generator, "fp32", TALL_BLOCKS, 4, 4)}, NEAR
    ),
    "mhc_sinkhorn_backward": Case(
        MhcSinkhornBackwardSpec(repeat=2),
        lambda generator: {
            "y_grad": _drawn(generator, "fp32", TALL_BLOCKS, 4, 4),
            "x": _drawn(generator, "fp32", TALL_BLOCKS, 4, 4),
        },
        NEAR,
    ),
    "expand_to_fused": Case(
        ExpandToFusedSpec(hidden=96, topk=3, dtype="e4m3", scales="fp32", tile=RowTile(rows=3, stages=2)),
        _expand,
    ),
    "reduce_fused": Case(ReduceFusedSpec(hidden=64, topk=3, row_scales=True), _reduce, NEAR),
    "engram_gate": Case(EngramGateSpec(hidden=192), _gate, NEAR),
    "engram_hash": Case(EngramHashSpec(ngram=3, layers=2, tables=8), _hash),
    "rope": Case(RopeSpec(heads=1, width=64), _rope),
    "topk_select": Case(TopkSelectSpec(topk=70, end=True, tile=SelectTile(chunk=256, slots=3)), _select),
    "topk_select shared": Case(
        TopkSelectSpec(topk=70, end=True, parts=3, tile=SelectTile(chunk=256, slots=1)),
        lambda generator: {
            **_select(generator, rows=2),
            "exchange": torch.zeros((128, 640), dtype=torch.int16),
        },
        {"output_idx": EXACT, "output_val": EXACT, "exchange": Close(absolute=torch.inf)},
        more=(
            lambda generator: {
                **_select(generator, rows=11),
                "exchange": torch.zeros((128, 640), dtype=torch.int16),
            },
        ),
    ),
    "ep_layout": Case(ep.LAYOUT, ep.layout_inputs),
    "ep_pack": Case(ep.PACK, ep.pack_tokens),
    "ep_prefix": Case(ep.PREFIX, ep.prefix_inputs),
    "ep_expand": Case(ep.EXPAND, ep.expand_records, sizes=ep.ROOM),
    "ep_expand cached": Case(ep.CACHED, ep.expand_cached, sizes=ep.CACHED_ROOM),
    "ep_combine": Case(ep.COMBINE, ep.combine_rows),
    "mla_decode": _decode(split=None),
    "mla_decode in parts": _decode(split=64),
    "mla_prefill": _prefill(),
    "mla_sparse_decode": _sparse_decode(),
    "mla_sparse_prefill": _sparse_prefill(),
    "mqa_logits": Case(indexer.LOGITS, indexer.logits_inputs, sizes=indexer.LOGITS_ROOM),
    "paged_mqa_logits": Case(indexer.PAGED, indexer.paged_logits_inputs),
    "kv_record_pack": Case(KvRecordPackSpec(fmt="fp4", tile=ROWS), lambda _: {"x": wide_rows(161, seed=1)}),
    "kv_record_unpack": Case(
        KvRecordUnpackSpec(fmt="fp8", tile=ROWS), lambda _: {"records": random_records(161, 528, seed=1)}
    ),
}
