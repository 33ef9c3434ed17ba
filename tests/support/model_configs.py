"""Public configurations of models, and the deployments that the tests derive manifests for.

``tests/data/model_configs`` holds the fields that decide shapes; ``_source`` is where the whole file is.
"""

from __future__ import annotations

import json
from pathlib import Path

from kaas.client.manifest_document import ManifestDocument, ManifestTarget
from kaas.client.model_kernels.deployment import Deployment
from kaas.client.model_kernels.derivation import derive_manifest, stored_dtypes
from kaas.client.model_kernels.model_config import ModelConfig

FOLDER = Path(__file__).parents[1] / "data" / "model_configs"
MODELS = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
MIXTURES = tuple(name for name in MODELS if not name.startswith(("llama", "qwen3_32b")))
SOC_NAME = "Ascend950DT_9581"


def config_path(model: str) -> Path:
    """The file of a model's configuration."""
    return FOLDER / f"{model}.json"


def model_config(model: str, **changes: object) -> ModelConfig:
    """A model's configuration with some fields changed; those that become ``...`` are taken out."""
    fields = json.loads(config_path(model).read_text()) | changes
    return ModelConfig({name: value for name, value in fields.items() if value is not ...}, model)


def serving(model: str) -> Deployment:
    """Inference as the weights are stored: one rank, or experts on 16 ranks; any sizes."""
    dtype, expert_dtype = stored_dtypes(model_config(model))
    ep, slots = (16, 4096) if model in MIXTURES else (1, None)
    return Deployment(dtype=dtype, expert_dtype=expert_dtype, ep=ep, max_tokens_per_rank=slots)


def training(model: str) -> Deployment:
    """Training in bf16, four ranks for the dense layers, steps of 4096 tokens."""
    return Deployment(train=True, tp=4, ep=8 if model in MIXTURES else 1, tokens=(4096,))


def scaled_training(model: str) -> Deployment:
    """Training in fp8, any number of tokens."""
    return Deployment(train=True, dtype="fp8", expert_dtype="fp8")


DEPLOYMENTS = {"serving": serving, "training": training, "fp8 training": scaled_training}


def derived(model: str, deployment: Deployment) -> ManifestDocument:
    """The manifest of a model for one part."""
    return derive_manifest(model_config(model), deployment, [ManifestTarget(SOC_NAME)])
