"""DeepSeek V4's hyper-connections: several residual streams, mixed before and after each block."""

from __future__ import annotations

from kaas.client.model_kernels.model_config import ModelConfig
from kaas.client.model_kernels.products import Step
from kaas.client.model_kernels.wish_list import Layers
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.hc_prenorm_gemm import HcPrenormGemmSpec
from kaas.kernel_library.families.mhc_expand import MhcExpandSpec
from kaas.kernel_library.families.mhc_expand_backward import MhcExpandBackwardSpec
from kaas.kernel_library.families.mhc_head_mix import MhcHeadMixSpec
from kaas.kernel_library.families.mhc_head_mix_backward import MhcHeadMixBackwardSpec
from kaas.kernel_library.families.mhc_norm_mixes import MhcNormMixesSpec
from kaas.kernel_library.families.mhc_norm_mixes_backward import MhcNormMixesBackwardSpec
from kaas.kernel_library.families.mhc_post import MhcPostSpec
from kaas.kernel_library.families.mhc_post_backward import MhcPostBackwardSpec
from kaas.kernel_library.families.mhc_pre_apply import MhcPreApplySpec
from kaas.kernel_library.families.mhc_pre_apply_backward import MhcPreApplyBackwardSpec
from kaas.kernel_library.families.mhc_pre_fuse import MhcPreFuseSpec
from kaas.kernel_library.families.mhc_sinkhorn_backward import MhcSinkhornBackwardSpec
from kaas.kernel_library.families.mhc_split_mixes import MhcSplitMixesSpec
from kaas.kernel_library.families.mhc_split_mixes_backward import MhcSplitMixesBackwardSpec


def stream_mixing(step: Step, layers: Layers, what: str, config: ModelConfig) -> None:
    """What lies before and after one block: streams to its input, its output to streams."""
    hidden, streams = config.number("hidden_size"), config.number("hc_mult")
    eps, norm_eps = config.fraction("hc_eps"), config.fraction("rms_norm_eps")
    repeat = config.number("hc_sinkhorn_iters")
    columns, tokens = streams * (streams + 2), step.tokens
    wide = streams * hidden
    of_streams = {"hidden": hidden, "streams": streams, "tokens": tokens}
    want = step.wishes.want
    want(layers, f"{what} mixes", HcPrenormGemmSpec, hidden=wide, columns=columns, tokens=tokens)
    want(
        layers,
        f"{what} input",
        MhcPreFuseSpec,
        norm_eps=norm_eps,
        pre_eps=eps,
        repeat=repeat,
        sinkhorn_eps=eps,
        **of_streams,
    )
    want(layers, f"{what} output", MhcPostSpec, **of_streams)
    if not step.trains:
        return
    place = f"{what} streams, gradients"
    norm = {"hidden": wide, "columns": columns, "eps": norm_eps, "tokens": tokens}
    want(layers, place, MhcPostBackwardSpec, **of_streams)
    want(layers, place, MhcPreApplyBackwardSpec, **of_streams)
    want(layers, place, MhcSinkhornBackwardSpec, streams=streams, repeat=repeat, eps=eps, tokens=tokens)
    # The backward pass computes the mixes again rather than keep them.
    want(layers, place, MhcNormMixesSpec, **norm)
    want(layers, place, MhcSplitMixesSpec, streams=streams, pre_eps=eps, tokens=tokens)
    want(layers, place, MhcSplitMixesBackwardSpec, streams=streams, tokens=tokens)
    want(layers, place, MhcNormMixesBackwardSpec, **norm)
    fp32 = {"dtype_a": "fp32", "dtype_b": "fp32", "dtype_d": "fp32"}
    want(
        layers,
        f"{what} mixes, gradient of the input",
        GemmSpec,
        m=tokens,
        n=wide,
        k=columns,
        layout="nn",
        **fp32,
    )
    step.wishes.lacks(
        layers,
        f"{what} mixes, gradient of the weight",
        "a product of fp32 with bf16",
        "operands of gemm have one dtype",
    )


def streams_begin(step: Step, layers: Layers, config: ModelConfig) -> None:
    """The embedding copied to every stream."""
    fields = {
        "hidden": config.number("hidden_size"),
        "streams": config.number("hc_mult"),
        "tokens": step.tokens,
    }
    step.wishes.want(layers, "streams", MhcExpandSpec, **fields)
    if step.trains:
        step.wishes.want(layers, "streams, gradient", MhcExpandBackwardSpec, **fields)


def streams_end(step: Step, layers: Layers, config: ModelConfig) -> None:
    """The streams joined for the output head."""
    hidden, streams = config.number("hidden_size"), config.number("hc_mult")
    tokens, eps = step.tokens, config.fraction("hc_eps")
    wide, norm_eps = streams * hidden, config.fraction("rms_norm_eps")
    want, lacks = step.wishes.want, step.wishes.lacks
    lacks(
        layers,
        "head mixes",
        f"a projection to {streams} columns with sums of squares",
        "hc_prenorm_gemm has multiples of 8",
    )
    want(layers, "head mixes", MhcNormMixesSpec, hidden=wide, columns=streams, eps=norm_eps, tokens=tokens)
    want(layers, "head mixes", MhcHeadMixSpec, streams=streams, eps=eps, tokens=tokens)
    want(layers, "head input", MhcPreApplySpec, hidden=hidden, streams=streams, tokens=tokens)
    if step.trains:
        place = "head mixes, gradients"
        want(layers, place, MhcPreApplyBackwardSpec, hidden=hidden, streams=streams, tokens=tokens)
        want(layers, place, MhcHeadMixBackwardSpec, streams=streams, tokens=tokens)
        want(
            layers,
            place,
            MhcNormMixesBackwardSpec,
            hidden=wide,
            columns=streams,
            eps=norm_eps,
            tokens=tokens,
        )
