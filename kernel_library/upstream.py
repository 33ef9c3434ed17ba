"""Upstream: the public functions of the released components, and why some of them have no spec here.

Names as the components' packages export them: DeepGEMM-Ascend 0.1.0 (``deep_gemm/__init__.py``) and
TileKernels 2.0.0 (``tile_kernels/*/__init__.py``), with the routing functions of its first version that later
ones dropped, and the module that DeepEP's Ascend port binds (``csrc/python_api.cpp``), without what its
communication layer registers for itself. Which family stands for a function is said on the family's own page,
so that it is said once.
"""

from __future__ import annotations

_LAYOUTS = ("nt", "nn", "tn", "tt")


def _named(package: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{package}.{name}" for name in names)


COMPONENTS: dict[str, tuple[str, ...]] = {
    "DeepGEMM": (
        *_named("deep_gemm", *(f"bf16_gemm_{layout}" for layout in _LAYOUTS)),
        *_named("deep_gemm", *(f"fp8_fp4_gemm_{layout}" for layout in _LAYOUTS)),
        *_named("deep_gemm", *(f"fp8_gemm_{layout}" for layout in _LAYOUTS)),
        *_named(
            "deep_gemm",
            "m_grouped_bf16_gemm_nt_contiguous",
            "m_grouped_bf16_gemm_nn_contiguous",
            "m_grouped_fp8_fp4_gemm_nt_contiguous",
            "m_grouped_fp8_fp4_gemm_nn_contiguous",
            "m_grouped_fp8_gemm_nt_contiguous",
            "m_grouped_fp8_gemm_nn_contiguous",
            "k_grouped_bf16_gemm_tn_contiguous",
            "k_grouped_fp8_gemm_tn_contiguous",
            "k_grouped_fp8_gemm_nt_contiguous",
            "einsum",
            "fp8_einsum",
            "transform_sf_into_required_layout",
            "transform_k_grouped_sf_into_required_layout",
            "tf32_hc_prenorm_gemm",
            "fp8_fp4_mega_moe",
            "transform_weights_for_mega_moe",
            "SymmBuffer",
            "epilogue",
            "fp8_fp4_mqa_logits",
            "get_paged_mqa_logits_metadata",
            "fp8_fp4_paged_mqa_logits",
        ),
        *_named("deep_gemm", *(f"cublaslt_gemm_{layout}" for layout in _LAYOUTS)),
        *_named("deep_gemm", *(f"aclnn_bf16_gemm_{layout}" for layout in _LAYOUTS)),
        *_named("deep_gemm", *(f"aclnn_fp8_fp4_gemm_{layout}" for layout in _LAYOUTS)),
        *_named(
            "deep_gemm",
            "set_num_sms",
            "get_num_sms",
            "set_npu_arch",
            "get_npu_arch",
            "set_mk_alignment_for_contiguous_layout",
            "get_mk_alignment_for_contiguous_layout",
            "get_theoretical_mk_alignment_for_contiguous_layout",
            "use_deterministic_algorithms",
            "get_deterministic_algorithms",
            "get_num_locality_domains",
            "is_localization_available",
            "localize",
            "is_localized",
            "destroy_localizer",
        ),
    ),
    "TileKernels": (
        *_named(
            "tile_kernels.quant",
            "cast",
            "per_token_cast",
            "per_token_cast_with_sf_only",
            "per_token_cast_with_precomputed_sf",
            "per_block_cast",
            "per_block_cast_with_sf_only",
            "per_block_cast_with_precomputed_sf",
            "per_channel_cast",
            "cast_back",
            "per_token_cast_back",
            "per_token_cast_and_cast_back",
            "per_block_cast_lossless",
            "unpack_from_e2m1fn_x2",
            "batched_transpose_weight_sf",
            "swiglu_forward",
            "swiglu_forward_and_per_token_cast",
            "swiglu_backward",
            "swiglu_backward_and_per_token_cast",
            "norm_forward",
            "norm_forward_and_per_token_cast",
            "norm_backward",
        ),
        *_named(
            "tile_kernels.moe",
            "topk_gate",
            "moe_topk_gate",
            "moe_topk_gate_forward",
            "moe_topk_gate_backward",
            "normalize_weight",
            "expand_to_fused",
            "expand_to_fused_with_sf",
            "reduce_fused",
            "get_fused_mapping",
            "group_count",
            "mask_indices_by_tp",
            "aux_fi",
            "inplace_unique_group_indices",
            "top2_sum_gate",
            "topk_sum_and_topk_group_idx",
        ),
        *_named(
            "tile_kernels.mhc",
            "expand_to_mhc_fwd",
            "expand_to_mhc_bwd",
            "mhc_sinkhorn_fwd",
            "mhc_sinkhorn_bwd",
            "mhc_pre_split_mixes_fwd",
            "mhc_pre_split_mixes_bwd",
            "mhc_pre_apply_mix_fwd",
            "mhc_pre_apply_mix_bwd",
            "mhc_post_fwd",
            "mhc_post_bwd",
            "mhc_head_compute_mix_fwd",
            "mhc_head_compute_mix_bwd",
            "mhc_fn_normw_merge_fwd",
            "mhc_fn_normw_merge_bwd",
            "mhc_reduce_partials_and_rmsnorm_fwd",
            "mhc_reduce_partials_and_rmsnorm_bwd",
            "mhc_pre_big_fuse_fwd",
            "mhc_multilayer_recompute",
        ),
        *_named(
            "tile_kernels.engram",
            "engram_hash",
            "engram_gate_fwd",
            "engram_gate_bwd",
            "fused_weight",
            "grad_w_reduce",
            "engram_sinkhorn_step",
            "engram_sinkhorn_step_reduce",
            "engram_sinkhorn_momentum_update",
            "engram_sinkhorn_finalize",
        ),
        "tile_kernels.transform.apply_rotary",
        *_named("tile_kernels.rand", "randn", "randn_like", "set_seed"),
    ),
    "DeepEP": (
        *_named(
            "deep_ep.EPBuffer",
            "dispatch",
            "combine",
            "lb_prefetch_weights",
            "lb_reduce_grads",
        ),
        *_named("deep_ep.PPBuffer", "send", "recv"),
        *_named("deep_ep.EngramBuffer", "set_config", "write", "fetch"),
        *_named("deep_ep.BucketBuffer", "all_gather", "reduce_scatter", "all_reduce"),
        *_named(
            "deep_ep",
            "calculate_ep_buffer_size",
            "get_num_allocation_alignment",
            "get_num_tma_alignment",
            "get_num_rdma_alignment",
            "EventHandle",
            "export_dispatch_debug_clock",
        ),
    ),
    "FlashMLA": _named(
        "flash_mla",
        "flash_mla_sparse_fwd",
        "flash_mla_with_kvcache",
        "get_mla_metadata",
        "flash_attn_varlen_func",
        "flash_attn_varlen_qkvpacked_func",
        "flash_attn_varlen_kvpacked_func",
        "fused_norm_rope_attn_rope_cast",
    ),
    "DeepSelect": _named("deep_select", "topk", "get_stride_requirement"),
}

_ACLNN = "a reference from CANN's own operator library, not a compiled kernel; call it through torch_npu"
_RUNTIME = "a switch of the JIT runtime; here core count, architecture and alignment come with the target"
_LOCALITY = "placement of memory on the device by its runtime, not a kernel"
_BETWEEN_CARDS = "moves data between cards and computes nothing on one; the network's runtime does that"
_BUFFER_ALIGNMENT = "an alignment of memory that the network's runtime registers"

NOT_SERVED: dict[str, str] = {
    **dict.fromkeys(
        (
            name
            for name in COMPONENTS["DeepGEMM"]
            if name.startswith(("deep_gemm.cublaslt_", "deep_gemm.aclnn_"))
        ),
        _ACLNN,
    ),
    **dict.fromkeys(
        (
            name
            for name in COMPONENTS["DeepGEMM"]
            if "num_sms" in name or "npu_arch" in name or "mk_alignment" in name or "deterministic" in name
        ),
        _RUNTIME,
    ),
    **dict.fromkeys(
        _named(
            "deep_gemm",
            "get_num_locality_domains",
            "is_localization_available",
            "localize",
            "is_localized",
            "destroy_localizer",
        ),
        _LOCALITY,
    ),
    "deep_gemm.fp8_fp4_mega_moe": "the part of one rank: sending rows between ranks is not part of it",
    "deep_gemm.SymmBuffer": "memory that the cards of a group share, registered by their network's runtime",
    "deep_gemm.transform_weights_for_mega_moe": "a reordering on the host; weights stay as stored here",
    "tile_kernels.quant.cast": (
        "on Ascend only fp32 to bf16 with stochastic rounding, whose random stream is not defined; the casts "
        "here round to nearest"
    ),
    "tile_kernels.mhc.mhc_multilayer_recompute": (
        "takes tables of device addresses, which no argument of a spec can be; mhc_pre_apply and mhc_post, "
        "once per layer, compute the same"
    ),
    "flash_mla.flash_mla_with_kvcache": (
        "mla_sparse_decode where `indices` are given, mla_decode where a block table is; no list or cache of "
        "a request is split by metadata that a caller brings"
    ),
    "flash_mla.get_mla_metadata": "an empty holder on Ascend; no kernel here needs a schedule made before it",
    **dict.fromkeys(
        _named("flash_mla", "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func"),
        "cuts a packed tensor up on the host and calls flash_attn_varlen_func",
    ),
    "flash_mla.fused_norm_rope_attn_rope_cast": (
        "CUDA only; norm, rotary embedding, attention and cast are kernels of their own here"
    ),
    "deep_select.topk": (
        "a NaN is reported per row, not trapped; begin, hint, other dtypes and an order by value are "
        "refused by its Ascend kernels too"
    ),
    "deep_select.get_stride_requirement": "none to ask for: rows lie one behind another at any alignment",
    "tile_kernels.quant.unpack_from_e2m1fn_x2": "a view on the host; cast_back unpacks on the device",
    **dict.fromkeys(
        (
            *_named("deep_ep.PPBuffer", "send", "recv"),
            *_named("deep_ep.EngramBuffer", "set_config", "write", "fetch"),
            "deep_ep.BucketBuffer.all_gather",
        ),
        _BETWEEN_CARDS,
    ),
    **dict.fromkeys(
        _named("deep_ep.BucketBuffer", "reduce_scatter", "all_reduce"),
        "a sum over cards, formed while the data travels between them; not the work of a single card",
    ),
    **dict.fromkeys(
        _named("deep_ep.EPBuffer", "lb_prefetch_weights", "lb_reduce_grads"),
        "weights and gradients of duplicated experts, moved between cards to balance their load",
    ),
    **dict.fromkeys(
        _named("deep_ep", "get_num_allocation_alignment", "get_num_tma_alignment", "get_num_rdma_alignment"),
        _BUFFER_ALIGNMENT,
    ),
    "deep_ep.EPBuffer.dispatch": (
        "what each card computes; records travel from `send` to `recv`, and counts to `ep_prefix`, by the "
        "network's runtime"
    ),
    "deep_ep.EPBuffer.combine": "the sum on the token's own card; bringing rows there is the network's part",
    "deep_ep.calculate_ep_buffer_size": (
        "arithmetic on the host: the shape of `ep_expand`'s recv says the size for a topology and a payload"
    ),
    "deep_ep.EventHandle": "an event of a stream, which the launching framework has",
    "deep_ep.export_dispatch_debug_clock": "a trace of that library's own kernels",
    "tile_kernels.rand.set_seed": "state on the host; here every call of randn passes its own seed",
}
"""Reasons by function; a function that some family serves may have a remark here too."""
