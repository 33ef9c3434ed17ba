"""A manifest from a model's configuration and how it is deployed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kaas.client.manifest_document import ManifestDocument, ManifestTarget
from kaas.client.model_kernels.architectures import architecture_of, further_tokens
from kaas.client.model_kernels.deployment import Deployment, Dtype, ExpertDtype
from kaas.client.model_kernels.model_config import ModelConfig
from kaas.client.model_kernels.products import Step
from kaas.client.model_kernels.wish_list import WishList
from kaas.kernel_library.targets import target_named

_DTYPES: dict[str, Literal["bf16", "fp16"]] = {"bfloat16": "bf16", "float16": "fp16"}


def derive_manifest(
    config: ModelConfig, deployment: Deployment, targets: Sequence[ManifestTarget] = ()
) -> ManifestDocument:
    """Every kernel that the model needs on a rank, for whom, and how often per step.

    A weight is the number of launches in one step of each workload, added up. What no family serves, or a
    target has no room for, is listed beside. Raises :class:`InvalidConfig` naming a missing or illegal field
    of the configuration, :class:`InvalidRequest` where the deployment does not divide it.
    """
    architecture = architecture_of(config)
    config.word("hidden_act", ("silu",))
    layers = deployment.layers(config.number("num_hidden_layers"))
    wishes = WishList([target_named(target.soc_name) for target in targets if target.soc_name])
    queries = 1 + further_tokens(config, deployment.mtp)
    for workload in deployment.workloads(queries):
        architecture(Step(wishes, deployment, workload, queries), config, layers)
    return ManifestDocument(
        entries=wishes.entries,
        targets=tuple(targets),
        comment=_comment(config, deployment, layers),
        unserved=wishes.unserved,
    )


def stored_dtypes(config: ModelConfig) -> tuple[Dtype, ExpertDtype]:
    """Number formats of products and of experts' weights, as the configuration says they are stored.

    Raises :class:`InvalidConfig` for formats that no product takes.
    """
    quantised = config.within("quantization_config")
    if quantised is None:
        word = config.word("dtype" if config.has("dtype") else "torch_dtype", tuple(_DTYPES))
        return _DTYPES[word], _DTYPES[word]
    quantised.word("quant_method", ("fp8",))
    of_experts = config if config.has("expert_dtype") else quantised
    is_fp4 = of_experts.word("expert_dtype", ("fp8", "fp4"), default="fp8") == "fp4"
    return "fp8", "fp4" if is_fp4 else "fp8"


def _comment(config: ModelConfig, deployment: Deployment, layers: range) -> str:
    dtype = f"{deployment.dtype}, experts {deployment.expert_dtype}"
    dtype = dtype if deployment.expert_dtype != deployment.dtype else str(deployment.dtype)
    parts = [
        config.architecture,
        f"layers {layers.start}-{layers.stop - 1}",
        f"tp {deployment.tp} ep {deployment.ep} pp {deployment.pp}",
        dtype,
    ]
    parts += ["training"] if deployment.train else []
    for name, sizes in (("tokens", deployment.tokens), ("batch sizes", deployment.batch_sizes)):
        parts += [f"{name} {', '.join(map(str, sizes))}"] if sizes else []
    return "; ".join(parts)
