"""kaas: kernel-as-a-service for Huawei Ascend NPUs.

``import kaas`` loads nothing else; each public name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kaas.client.api import aget_kernel as aget_kernel
    from kaas.client.api import get_kernel as get_kernel
    from kaas.client.api import get_kernels as get_kernels
    from kaas.client.api import missing_kernels as missing_kernels
    from kaas.client.handle import KernelHandle as KernelHandle
    from kaas.client.kernel_chain import KernelChain as KernelChain
    from kaas.client.missing_kernels import MissingKernel as MissingKernel
    from kaas.kernel_library.attention.attention_tiles import AttentionTile as AttentionTile
    from kaas.kernel_library.composite import CompositeSpec as CompositeSpec
    from kaas.kernel_library.composites.sparse_attention import SparseAttentionSpec as SparseAttentionSpec
    from kaas.kernel_library.cube.gemm_fields import GemmTile as GemmTile
    from kaas.kernel_library.families.aux_fi import AuxFiSpec as AuxFiSpec
    from kaas.kernel_library.families.batched_gemm import BatchedGemmSpec as BatchedGemmSpec
    from kaas.kernel_library.families.block_scaled_gemm import BlockScaledGemmSpec as BlockScaledGemmSpec
    from kaas.kernel_library.families.cast import CastSpec as CastSpec
    from kaas.kernel_library.families.cast_and_back import CastAndBackSpec as CastAndBackSpec
    from kaas.kernel_library.families.cast_back import CastBackSpec as CastBackSpec
    from kaas.kernel_library.families.engram_fused_weight import (
        EngramFusedWeightSpec as EngramFusedWeightSpec,
    )
    from kaas.kernel_library.families.engram_gate import EngramGateSpec as EngramGateSpec
    from kaas.kernel_library.families.engram_gate_backward import (
        EngramGateBackwardSpec as EngramGateBackwardSpec,
    )
    from kaas.kernel_library.families.engram_hash import EngramHashSpec as EngramHashSpec
    from kaas.kernel_library.families.engram_sinkhorn_finalize import (
        EngramSinkhornFinalizeSpec as EngramSinkhornFinalizeSpec,
    )
    from kaas.kernel_library.families.engram_sinkhorn_momentum import (
        EngramSinkhornMomentumSpec as EngramSinkhornMomentumSpec,
    )
    from kaas.kernel_library.families.engram_sinkhorn_step import (
        EngramSinkhornStepSpec as EngramSinkhornStepSpec,
    )
    from kaas.kernel_library.families.engram_sinkhorn_step_reduce import (
        EngramSinkhornStepReduceSpec as EngramSinkhornStepReduceSpec,
    )
    from kaas.kernel_library.families.engram_weight_gradient import (
        EngramWeightGradientSpec as EngramWeightGradientSpec,
    )
    from kaas.kernel_library.families.ep_combine import EpCombineSpec as EpCombineSpec
    from kaas.kernel_library.families.ep_expand import EpExpandSpec as EpExpandSpec
    from kaas.kernel_library.families.ep_layout import EpLayoutSpec as EpLayoutSpec
    from kaas.kernel_library.families.ep_pack import EpPackSpec as EpPackSpec
    from kaas.kernel_library.families.ep_prefix import EpPrefixSpec as EpPrefixSpec
    from kaas.kernel_library.families.expand_to_fused import ExpandToFusedSpec as ExpandToFusedSpec
    from kaas.kernel_library.families.expert_mlp import ExpertMlpSpec as ExpertMlpSpec
    from kaas.kernel_library.families.fused_mapping import FusedMappingSpec as FusedMappingSpec
    from kaas.kernel_library.families.gemm import GemmSpec as GemmSpec
    from kaas.kernel_library.families.group_count import GroupCountSpec as GroupCountSpec
    from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec as GroupedGemmSpec
    from kaas.kernel_library.families.hc_prenorm_gemm import HcPrenormGemmSpec as HcPrenormGemmSpec
    from kaas.kernel_library.families.k_grouped_gemm import KGroupedGemmSpec as KGroupedGemmSpec
    from kaas.kernel_library.families.kv_record_pack import KvRecordPackSpec as KvRecordPackSpec
    from kaas.kernel_library.families.kv_record_unpack import KvRecordUnpackSpec as KvRecordUnpackSpec
    from kaas.kernel_library.families.lossless_block_cast import (
        LosslessBlockCastSpec as LosslessBlockCastSpec,
    )
    from kaas.kernel_library.families.mask_indices_by_tp import MaskIndicesByTpSpec as MaskIndicesByTpSpec
    from kaas.kernel_library.families.mhc_expand import MhcExpandSpec as MhcExpandSpec
    from kaas.kernel_library.families.mhc_expand_backward import (
        MhcExpandBackwardSpec as MhcExpandBackwardSpec,
    )
    from kaas.kernel_library.families.mhc_head_mix import MhcHeadMixSpec as MhcHeadMixSpec
    from kaas.kernel_library.families.mhc_head_mix_backward import (
        MhcHeadMixBackwardSpec as MhcHeadMixBackwardSpec,
    )
    from kaas.kernel_library.families.mhc_norm_mixes import MhcNormMixesSpec as MhcNormMixesSpec
    from kaas.kernel_library.families.mhc_norm_mixes_backward import (
        MhcNormMixesBackwardSpec as MhcNormMixesBackwardSpec,
    )
    from kaas.kernel_library.families.mhc_norm_weight import MhcNormWeightSpec as MhcNormWeightSpec
    from kaas.kernel_library.families.mhc_norm_weight_backward import (
        MhcNormWeightBackwardSpec as MhcNormWeightBackwardSpec,
    )
    from kaas.kernel_library.families.mhc_post import MhcPostSpec as MhcPostSpec
    from kaas.kernel_library.families.mhc_post_backward import MhcPostBackwardSpec as MhcPostBackwardSpec
    from kaas.kernel_library.families.mhc_pre_apply import MhcPreApplySpec as MhcPreApplySpec
    from kaas.kernel_library.families.mhc_pre_apply_backward import (
        MhcPreApplyBackwardSpec as MhcPreApplyBackwardSpec,
    )
    from kaas.kernel_library.families.mhc_pre_fuse import MhcPreFuseSpec as MhcPreFuseSpec
    from kaas.kernel_library.families.mhc_sinkhorn import MhcSinkhornSpec as MhcSinkhornSpec
    from kaas.kernel_library.families.mhc_sinkhorn_backward import (
        MhcSinkhornBackwardSpec as MhcSinkhornBackwardSpec,
    )
    from kaas.kernel_library.families.mhc_split_mixes import MhcSplitMixesSpec as MhcSplitMixesSpec
    from kaas.kernel_library.families.mhc_split_mixes_backward import (
        MhcSplitMixesBackwardSpec as MhcSplitMixesBackwardSpec,
    )
    from kaas.kernel_library.families.mla_decode import MlaDecodeSpec as MlaDecodeSpec
    from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec as MlaPrefillSpec
    from kaas.kernel_library.families.mla_sparse_decode import MlaSparseDecodeSpec as MlaSparseDecodeSpec
    from kaas.kernel_library.families.mla_sparse_prefill import MlaSparsePrefillSpec as MlaSparsePrefillSpec
    from kaas.kernel_library.families.moe_gate import MoeGateSpec as MoeGateSpec
    from kaas.kernel_library.families.moe_gate_backward import MoeGateBackwardSpec as MoeGateBackwardSpec
    from kaas.kernel_library.families.mqa_logits import MqaLogitsSpec as MqaLogitsSpec
    from kaas.kernel_library.families.normalize_weight import NormalizeWeightSpec as NormalizeWeightSpec
    from kaas.kernel_library.families.paged_mqa_logits import PagedMqaLogitsSpec as PagedMqaLogitsSpec
    from kaas.kernel_library.families.paged_mqa_metadata import PagedMqaMetadataSpec as PagedMqaMetadataSpec
    from kaas.kernel_library.families.randn import RandnSpec as RandnSpec
    from kaas.kernel_library.families.reduce_fused import ReduceFusedSpec as ReduceFusedSpec
    from kaas.kernel_library.families.rmsnorm import RmsNormSpec as RmsNormSpec
    from kaas.kernel_library.families.rmsnorm_backward import RmsNormBackwardSpec as RmsNormBackwardSpec
    from kaas.kernel_library.families.rope import RopeSpec as RopeSpec
    from kaas.kernel_library.families.scale_layout import ScaleLayoutSpec as ScaleLayoutSpec
    from kaas.kernel_library.families.scale_transpose import ScaleTransposeSpec as ScaleTransposeSpec
    from kaas.kernel_library.families.swiglu import SwigluSpec as SwigluSpec
    from kaas.kernel_library.families.swiglu_backward import SwigluBackwardSpec as SwigluBackwardSpec
    from kaas.kernel_library.families.topk_gate import TopkGateSpec as TopkGateSpec
    from kaas.kernel_library.families.topk_groups import TopkGroupsSpec as TopkGroupsSpec
    from kaas.kernel_library.families.topk_select import SelectTile as SelectTile
    from kaas.kernel_library.families.topk_select import TopkSelectSpec as TopkSelectSpec
    from kaas.kernel_library.families.unique_group_indices import (
        UniqueGroupIndicesSpec as UniqueGroupIndicesSpec,
    )
    from kaas.kernel_library.registry import parse_spec as parse_spec
    from kaas.kernel_library.routing.expert_parallel import (
        ExpertParallelTopology as ExpertParallelTopology,
    )
    from kaas.kernel_library.spec import KernelSpec as KernelSpec
    from kaas.kernel_library.vector.row_plan import RowTile as RowTile
    from kaas.proto.errors import ArtifactDamaged as ArtifactDamaged
    from kaas.proto.errors import BundleRefused as BundleRefused
    from kaas.proto.errors import CompileFailed as CompileFailed
    from kaas.proto.errors import CompileOutOfMemory as CompileOutOfMemory
    from kaas.proto.errors import CompileTimeout as CompileTimeout
    from kaas.proto.errors import DaemonUnavailable as DaemonUnavailable
    from kaas.proto.errors import DeadlineExceeded as DeadlineExceeded
    from kaas.proto.errors import DeviceError as DeviceError
    from kaas.proto.errors import DoesNotFit as DoesNotFit
    from kaas.proto.errors import InternalError as InternalError
    from kaas.proto.errors import InvalidArgument as InvalidArgument
    from kaas.proto.errors import InvalidConfig as InvalidConfig
    from kaas.proto.errors import InvalidManifest as InvalidManifest
    from kaas.proto.errors import InvalidRequest as InvalidRequest
    from kaas.proto.errors import InvalidSpec as InvalidSpec
    from kaas.proto.errors import JobNotFound as JobNotFound
    from kaas.proto.errors import KaasError as KaasError
    from kaas.proto.errors import KernelNotFound as KernelNotFound
    from kaas.proto.errors import NotReady as NotReady
    from kaas.proto.errors import Overloaded as Overloaded
    from kaas.proto.errors import PermissionDenied as PermissionDenied
    from kaas.proto.errors import RegistryFailed as RegistryFailed
    from kaas.proto.errors import RemoteUnavailable as RemoteUnavailable
    from kaas.proto.errors import ShuttingDown as ShuttingDown
    from kaas.proto.errors import SignatureRefused as SignatureRefused
    from kaas.proto.errors import StoreFull as StoreFull
    from kaas.proto.errors import StoreUnavailable as StoreUnavailable
    from kaas.proto.errors import StrictMiss as StrictMiss
    from kaas.proto.errors import TargetMismatch as TargetMismatch
    from kaas.proto.errors import ToolchainMissing as ToolchainMissing
    from kaas.proto.errors import UnknownFamily as UnknownFamily
    from kaas.proto.errors import UnsupportedTarget as UnsupportedTarget
    from kaas.proto.errors import WorkerCrashed as WorkerCrashed

    __version__: str

_MODULES = {
    "aget_kernel": "kaas.client.api",
    "get_kernel": "kaas.client.api",
    "get_kernels": "kaas.client.api",
    "missing_kernels": "kaas.client.api",
    "MissingKernel": "kaas.client.missing_kernels",
    "KernelHandle": "kaas.client.handle",
    "KernelChain": "kaas.client.kernel_chain",
    "AttentionTile": "kaas.kernel_library.attention.attention_tiles",
    "CompositeSpec": "kaas.kernel_library.composite",
    "AuxFiSpec": "kaas.kernel_library.families.aux_fi",
    "BatchedGemmSpec": "kaas.kernel_library.families.batched_gemm",
    "BlockScaledGemmSpec": "kaas.kernel_library.families.block_scaled_gemm",
    "CastAndBackSpec": "kaas.kernel_library.families.cast_and_back",
    "CastBackSpec": "kaas.kernel_library.families.cast_back",
    "CastSpec": "kaas.kernel_library.families.cast",
    "EngramFusedWeightSpec": "kaas.kernel_library.families.engram_fused_weight",
    "EngramGateBackwardSpec": "kaas.kernel_library.families.engram_gate_backward",
    "EngramGateSpec": "kaas.kernel_library.families.engram_gate",
    "EngramHashSpec": "kaas.kernel_library.families.engram_hash",
    "EngramSinkhornFinalizeSpec": "kaas.kernel_library.families.engram_sinkhorn_finalize",
    "EngramSinkhornMomentumSpec": "kaas.kernel_library.families.engram_sinkhorn_momentum",
    "EngramSinkhornStepReduceSpec": "kaas.kernel_library.families.engram_sinkhorn_step_reduce",
    "EngramSinkhornStepSpec": "kaas.kernel_library.families.engram_sinkhorn_step",
    "EngramWeightGradientSpec": "kaas.kernel_library.families.engram_weight_gradient",
    "EpCombineSpec": "kaas.kernel_library.families.ep_combine",
    "EpExpandSpec": "kaas.kernel_library.families.ep_expand",
    "EpLayoutSpec": "kaas.kernel_library.families.ep_layout",
    "EpPackSpec": "kaas.kernel_library.families.ep_pack",
    "EpPrefixSpec": "kaas.kernel_library.families.ep_prefix",
    "ExpandToFusedSpec": "kaas.kernel_library.families.expand_to_fused",
    "ExpertMlpSpec": "kaas.kernel_library.families.expert_mlp",
    "FusedMappingSpec": "kaas.kernel_library.families.fused_mapping",
    "GemmSpec": "kaas.kernel_library.families.gemm",
    "GroupCountSpec": "kaas.kernel_library.families.group_count",
    "GroupedGemmSpec": "kaas.kernel_library.families.grouped_gemm",
    "HcPrenormGemmSpec": "kaas.kernel_library.families.hc_prenorm_gemm",
    "KGroupedGemmSpec": "kaas.kernel_library.families.k_grouped_gemm",
    "KvRecordPackSpec": "kaas.kernel_library.families.kv_record_pack",
    "KvRecordUnpackSpec": "kaas.kernel_library.families.kv_record_unpack",
    "LosslessBlockCastSpec": "kaas.kernel_library.families.lossless_block_cast",
    "MaskIndicesByTpSpec": "kaas.kernel_library.families.mask_indices_by_tp",
    "MhcExpandBackwardSpec": "kaas.kernel_library.families.mhc_expand_backward",
    "MhcExpandSpec": "kaas.kernel_library.families.mhc_expand",
    "MhcHeadMixBackwardSpec": "kaas.kernel_library.families.mhc_head_mix_backward",
    "MhcHeadMixSpec": "kaas.kernel_library.families.mhc_head_mix",
    "MhcNormMixesBackwardSpec": "kaas.kernel_library.families.mhc_norm_mixes_backward",
    "MhcNormMixesSpec": "kaas.kernel_library.families.mhc_norm_mixes",
    "MhcNormWeightBackwardSpec": "kaas.kernel_library.families.mhc_norm_weight_backward",
    "MhcNormWeightSpec": "kaas.kernel_library.families.mhc_norm_weight",
    "MhcPostBackwardSpec": "kaas.kernel_library.families.mhc_post_backward",
    "MhcPostSpec": "kaas.kernel_library.families.mhc_post",
    "MhcPreApplyBackwardSpec": "kaas.kernel_library.families.mhc_pre_apply_backward",
    "MhcPreApplySpec": "kaas.kernel_library.families.mhc_pre_apply",
    "MhcPreFuseSpec": "kaas.kernel_library.families.mhc_pre_fuse",
    "MhcSinkhornBackwardSpec": "kaas.kernel_library.families.mhc_sinkhorn_backward",
    "MhcSinkhornSpec": "kaas.kernel_library.families.mhc_sinkhorn",
    "MhcSplitMixesBackwardSpec": "kaas.kernel_library.families.mhc_split_mixes_backward",
    "MhcSplitMixesSpec": "kaas.kernel_library.families.mhc_split_mixes",
    "MlaDecodeSpec": "kaas.kernel_library.families.mla_decode",
    "MlaPrefillSpec": "kaas.kernel_library.families.mla_prefill",
    "MlaSparseDecodeSpec": "kaas.kernel_library.families.mla_sparse_decode",
    "MlaSparsePrefillSpec": "kaas.kernel_library.families.mla_sparse_prefill",
    "MoeGateBackwardSpec": "kaas.kernel_library.families.moe_gate_backward",
    "MoeGateSpec": "kaas.kernel_library.families.moe_gate",
    "MqaLogitsSpec": "kaas.kernel_library.families.mqa_logits",
    "NormalizeWeightSpec": "kaas.kernel_library.families.normalize_weight",
    "PagedMqaLogitsSpec": "kaas.kernel_library.families.paged_mqa_logits",
    "PagedMqaMetadataSpec": "kaas.kernel_library.families.paged_mqa_metadata",
    "RandnSpec": "kaas.kernel_library.families.randn",
    "ReduceFusedSpec": "kaas.kernel_library.families.reduce_fused",
    "RmsNormBackwardSpec": "kaas.kernel_library.families.rmsnorm_backward",
    "RmsNormSpec": "kaas.kernel_library.families.rmsnorm",
    "RopeSpec": "kaas.kernel_library.families.rope",
    "ScaleLayoutSpec": "kaas.kernel_library.families.scale_layout",
    "ScaleTransposeSpec": "kaas.kernel_library.families.scale_transpose",
    "SelectTile": "kaas.kernel_library.families.topk_select",
    "SparseAttentionSpec": "kaas.kernel_library.composites.sparse_attention",
    "SwigluBackwardSpec": "kaas.kernel_library.families.swiglu_backward",
    "SwigluSpec": "kaas.kernel_library.families.swiglu",
    "TopkGateSpec": "kaas.kernel_library.families.topk_gate",
    "TopkGroupsSpec": "kaas.kernel_library.families.topk_groups",
    "TopkSelectSpec": "kaas.kernel_library.families.topk_select",
    "UniqueGroupIndicesSpec": "kaas.kernel_library.families.unique_group_indices",
    "GemmTile": "kaas.kernel_library.cube.gemm_fields",
    "ExpertParallelTopology": "kaas.kernel_library.routing.expert_parallel",
    "RowTile": "kaas.kernel_library.vector.row_plan",
    "parse_spec": "kaas.kernel_library.registry",
    "KernelSpec": "kaas.kernel_library.spec",
}
_ERRORS = (
    "ArtifactDamaged",
    "BundleRefused",
    "CompileFailed",
    "CompileOutOfMemory",
    "CompileTimeout",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "DeviceError",
    "DoesNotFit",
    "InternalError",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidManifest",
    "InvalidRequest",
    "InvalidSpec",
    "JobNotFound",
    "KaasError",
    "KernelNotFound",
    "NotReady",
    "Overloaded",
    "PermissionDenied",
    "RegistryFailed",
    "RemoteUnavailable",
    "ShuttingDown",
    "SignatureRefused",
    "StoreFull",
    "StoreUnavailable",
    "StrictMiss",
    "TargetMismatch",
    "ToolchainMissing",
    "UnknownFamily",
    "UnsupportedTarget",
    "WorkerCrashed",
)
_MODULES |= dict.fromkeys(_ERRORS, "kaas.proto.errors")


def _imported(module: str) -> Any:
    """The module, imported without a pass of the cyclic garbage collector.

    Definitions are no garbage, yet enough objects to set off passes over what the process loaded before:
    beside torch a fifth of a rank's first ``get_kernel``.
    """
    import gc
    from importlib import import_module

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if was_enabled:
            gc.enable()


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is not None:
        value = getattr(_imported(module), name)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("ascend-kaas")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "__version__"})


# Spelt out for star imports and for editors; a test holds it equal to the table above.
__all__ = [
    "ArtifactDamaged",
    "AttentionTile",
    "AuxFiSpec",
    "BatchedGemmSpec",
    "BlockScaledGemmSpec",
    "BundleRefused",
    "CastAndBackSpec",
    "CastBackSpec",
    "CastSpec",
    "CompileFailed",
    "CompileOutOfMemory",
    "CompileTimeout",
    "CompositeSpec",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "DeviceError",
    "DoesNotFit",
    "EngramFusedWeightSpec",
    "EngramGateBackwardSpec",
    "EngramGateSpec",
    "EngramHashSpec",
    "EngramSinkhornFinalizeSpec",
    "EngramSinkhornMomentumSpec",
    "EngramSinkhornStepReduceSpec",
    "EngramSinkhornStepSpec",
    "EngramWeightGradientSpec",
    "EpCombineSpec",
    "EpExpandSpec",
    "EpLayoutSpec",
    "EpPackSpec",
    "EpPrefixSpec",
    "ExpandToFusedSpec",
    "ExpertMlpSpec",
    "ExpertParallelTopology",
    "FusedMappingSpec",
    "GemmSpec",
    "GemmTile",
    "GroupCountSpec",
    "GroupedGemmSpec",
    "HcPrenormGemmSpec",
    "InternalError",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidManifest",
    "InvalidRequest",
    "InvalidSpec",
    "JobNotFound",
    "KGroupedGemmSpec",
    "KaasError",
    "KernelChain",
    "KernelHandle",
    "KernelNotFound",
    "KernelSpec",
    "KvRecordPackSpec",
    "KvRecordUnpackSpec",
    "LosslessBlockCastSpec",
    "MaskIndicesByTpSpec",
    "MhcExpandBackwardSpec",
    "MhcExpandSpec",
    "MhcHeadMixBackwardSpec",
    "MhcHeadMixSpec",
    "MhcNormMixesBackwardSpec",
    "MhcNormMixesSpec",
    "MhcNormWeightBackwardSpec",
    "MhcNormWeightSpec",
    "MhcPostBackwardSpec",
    "MhcPostSpec",
    "MhcPreApplyBackwardSpec",
    "MhcPreApplySpec",
    "MhcPreFuseSpec",
    "MhcSinkhornBackwardSpec",
    "MhcSinkhornSpec",
    "MhcSplitMixesBackwardSpec",
    "MhcSplitMixesSpec",
    "MissingKernel",
    "MlaDecodeSpec",
    "MlaPrefillSpec",
    "MlaSparseDecodeSpec",
    "MlaSparsePrefillSpec",
    "MoeGateBackwardSpec",
    "MoeGateSpec",
    "MqaLogitsSpec",
    "NormalizeWeightSpec",
    "NotReady",
    "Overloaded",
    "PagedMqaLogitsSpec",
    "PagedMqaMetadataSpec",
    "PermissionDenied",
    "RandnSpec",
    "ReduceFusedSpec",
    "RegistryFailed",
    "RemoteUnavailable",
    "RmsNormBackwardSpec",
    "RmsNormSpec",
    "RopeSpec",
    "RowTile",
    "ScaleLayoutSpec",
    "ScaleTransposeSpec",
    "SelectTile",
    "ShuttingDown",
    "SignatureRefused",
    "SparseAttentionSpec",
    "StoreFull",
    "StoreUnavailable",
    "StrictMiss",
    "SwigluBackwardSpec",
    "SwigluSpec",
    "TargetMismatch",
    "ToolchainMissing",
    "TopkGateSpec",
    "TopkGroupsSpec",
    "TopkSelectSpec",
    "UniqueGroupIndicesSpec",
    "UnknownFamily",
    "UnsupportedTarget",
    "WorkerCrashed",
    "aget_kernel",
    "get_kernel",
    "get_kernels",
    "missing_kernels",
    "parse_spec",
]
