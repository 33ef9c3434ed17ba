"""Compile estimates: what one compile of a family takes where nothing was learned yet.

Measured once, on the CPU twin, on a machine with two cores, with each family's typical spec; a toolkit's own
compiler takes longer. Splitting work needs only that families compare, and whoever has compiled knows better
(:class:`kaas.proto.compile_cost.FamilyCost`). Not part of any key.
"""

from __future__ import annotations

TYPICAL_SECONDS = 1.0
"""Of a family that is not listed: the median."""

PEAK_BYTES = 2 << 30
"""What to expect of one compile's memory: the same first guess as a daemon's."""

COMPILE_SECONDS = {
    "aux_fi": 0.9,
    "batched_gemm": 0.7,
    "block_scaled_gemm": 0.7,
    "cast": 1.0,
    "cast_and_back": 1.1,
    "cast_back": 0.8,
    "engram_fused_weight": 0.5,
    "engram_gate": 1.1,
    "engram_gate_backward": 1.2,
    "engram_hash": 0.8,
    "engram_sinkhorn_finalize": 0.9,
    "engram_sinkhorn_momentum": 0.7,
    "engram_sinkhorn_step": 1.3,
    "engram_sinkhorn_step_reduce": 0.5,
    "engram_weight_gradient": 0.7,
    "ep_combine": 1.1,
    "ep_expand": 1.0,
    "ep_layout": 1.4,
    "ep_pack": 0.8,
    "ep_prefix": 1.0,
    "expand_to_fused": 0.8,
    "expert_mlp": 2.2,
    "fused_mapping": 1.8,
    "gemm": 0.7,
    "group_count": 1.0,
    "grouped_gemm": 0.7,
    "hc_prenorm_gemm": 1.0,
    "k_grouped_gemm": 0.8,
    "kv_record_pack": 1.2,
    "kv_record_unpack": 1.0,
    "lossless_block_cast": 1.3,
    "mask_indices_by_tp": 1.2,
    "mhc_expand": 0.5,
    "mhc_expand_backward": 0.7,
    "mhc_head_mix": 0.9,
    "mhc_head_mix_backward": 1.3,
    "mhc_norm_mixes": 1.0,
    "mhc_norm_mixes_backward": 1.0,
    "mhc_norm_weight": 0.6,
    "mhc_norm_weight_backward": 0.6,
    "mhc_post": 0.7,
    "mhc_post_backward": 1.0,
    "mhc_pre_apply": 0.8,
    "mhc_pre_apply_backward": 0.8,
    "mhc_pre_fuse": 2.3,
    "mhc_sinkhorn": 1.7,
    "mhc_sinkhorn_backward": 3.7,
    "mhc_split_mixes": 1.1,
    "mhc_split_mixes_backward": 1.3,
    "mla_decode": 2.8,
    "mla_prefill": 2.2,
    "mla_sparse_decode": 2.9,
    "mla_sparse_prefill": 2.4,
    "moe_gate": 2.1,
    "moe_gate_backward": 1.5,
    "mqa_logits": 1.6,
    "normalize_weight": 0.8,
    "paged_mqa_logits": 2.3,
    "paged_mqa_metadata": 1.2,
    "randn": 1.7,
    "reduce_fused": 0.8,
    "rmsnorm": 0.9,
    "rmsnorm_backward": 1.3,
    "rope": 0.8,
    "scale_layout": 0.8,
    "scale_transpose": 1.2,
    "swiglu": 1.1,
    "swiglu_backward": 1.9,
    "topk_gate": 1.0,
    "topk_groups": 1.0,
    "topk_select": 1.8,
    "unique_group_indices": 0.7,
}
"""Wall seconds of one compile, by family."""
