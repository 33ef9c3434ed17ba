"""Kernels that models want are lowered to Ascend C: a sample every day, all of them in the slow run."""

from __future__ import annotations

import hashlib

import pytest
from support.model_configs import DEPLOYMENTS, MODELS, derived
from support.twin_kernels import lowered

from kaas.kernel_library.spec import KernelSpec

SAMPLED = 2
CUBE_CORES = 32


def specs_of(model: str, kind: str) -> list[KernelSpec]:
    """What a model wants, in an order that has nothing to do with its layers."""
    specs = [spec for entry in derived(model, DEPLOYMENTS[kind](model)).entries for spec in entry.kernels()]
    return sorted(specs, key=lambda spec: hashlib.sha256(spec.canonical()).digest())


@pytest.mark.parametrize("model", MODELS)
def test_some_kernels_of_a_model_are_lowered(model: str) -> None:
    for spec in specs_of(model, "serving")[:SAMPLED]:
        assert "__global__" in lowered(spec, CUBE_CORES).source


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEPLOYMENTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_kernel_of_a_model_is_lowered(model: str, kind: str) -> None:
    for spec in specs_of(model, kind):
        assert "__global__" in lowered(spec, CUBE_CORES).source, spec
