"""engram_hash on the CPU twin: exact 64-bit arithmetic in every schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernel_checks import check_kernel, reference_of

from kaas.kernel_library.families.engram_hash import EngramHashSpec

CASES = [
    (EngramHashSpec(ngram=3, layers=2, tables=8), 4),
    (EngramHashSpec(ngram=2, layers=1, tables=1, image_mask=True), 32),
    (EngramHashSpec(ngram=4, layers=3, tables=5, image_mask=True), 4),
    (EngramHashSpec(ngram=5, layers=6, tables=16), 28),
]
IDS = [f"{spec.ngram}gram-{spec.layers}x{spec.tables}-{cores}cores" for spec, cores in CASES]


def inputs_for(spec: EngramHashSpec, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(tokens)

    def integers(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=generator)

    inputs = {
        "ngram_token_ids": integers(-1, 129280, tokens, spec.ngram).int(),
        "multipliers": integers(-(2**62), 2**62, spec.layers, spec.ngram) * 2 + 1,
        "vocab_sizes": integers(1, 2**31 - 1, spec.layers, spec.ngram - 1, spec.tables).int(),
        "offsets": integers(0, 1000, spec.layers, spec.columns).int(),
    }
    inputs["vocab_sizes"][0, 0, 0] = 1
    inputs["vocab_sizes"] >>= 1  # so that no sum with an offset overflows
    inputs["vocab_sizes"].clamp_(min=1)
    if spec.image_mask:
        inputs["image_token_mask"] = integers(0, 2, tokens).bool()
    return inputs


@pytest.mark.parametrize(("spec", "cores"), CASES, ids=IDS)
@pytest.mark.parametrize("tokens", [1, 70, 3001])
def test_ngrams_are_hashed(spec: EngramHashSpec, cores: int, tokens: int) -> None:
    check_kernel(spec, cores, inputs_for(spec, tokens))


def test_a_loop_longer_than_its_ring() -> None:
    spec = EngramHashSpec(ngram=4, layers=8, tables=16, tokens=64 * 8 * 5 + 9)
    check_kernel(spec, 4, inputs_for(spec, spec.tokens))


def test_indices_are_never_negative() -> None:
    spec, cores = CASES[0]
    inputs = inputs_for(spec, 500)
    inputs["offsets"].zero_()
    out = check_kernel(spec, cores, inputs)["out"]
    sizes = inputs["vocab_sizes"].flatten(1)[:, None, :]
    assert ((out >= 0) & (out < sizes)).all()


def test_products_that_wrap_hash_alike() -> None:
    spec, cores = CASES[0]
    inputs = inputs_for(spec, 4)
    inputs["multipliers"][:] = torch.tensor([2**63 - 1, -(2**63), 2**62 + 1])
    inputs["ngram_token_ids"][:] = 2**31 - 1
    check_kernel(spec, cores, inputs)


def test_results_do_not_depend_on_the_core_count() -> None:
    spec = CASES[0][0]
    inputs = inputs_for(spec, 777)
    for cores in (4, 28):
        assert check_kernel(spec, cores, inputs)["out"].equal(reference_of(spec, inputs)["out"])
