"""expert_mlp on the CPU twin against both products in float64 and against the same steps as three kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.expert_mlp_inputs import expert_mlp_inputs
from support.kernel_checks import EXACT, CalcDiff, check_kernel, reference_of, run_once
from support.synchronisation_mutants import Mutant, mutants, removed, switchable
from support.twin_kernels import altered_kernel, kernel, lowered
from support.twin_toolkit import schedule

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.expert_mlp import ExpertMlpSpec
from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec
from kaas.kernel_library.families.swiglu import SwigluSpec
from kaas.proto.errors import DeviceError

# Cores own several tiles and tiles have several K steps: more than any ring has slots.
TILE = GemmTile(block_m=32, block_n=256, block_k=64)
DEEP = GemmTile(block_m=48, block_n=256, block_k=128)
RAGGED = ExpertMlpSpec(hidden=320, intermediate=192, tile=TILE)
CLOSE = {"h": CalcDiff(1e-5), "h_scales": EXACT, "y": CalcDiff(1e-5)}

# One row, an empty group, more than the alignment, a few.
ROWS = (1, 0, 270, 33)


@pytest.mark.parametrize(
    ("spec", "cores"),
    [
        (RAGGED, 4),
        (ExpertMlpSpec(groups=4, m=1024, hidden=192, intermediate=320, clamp=96.0, tile=DEEP), 28),
        (ExpertMlpSpec(hidden=320, intermediate=128, dtype_w="e4m3", clamp=0.0, tile=DEEP), 4),
    ],
    ids=["e2m1", "e2m1-clamp", "e4m3"],
)
def test_integers_agree_to_the_last_bit_and_random_values_nearly(spec: ExpertMlpSpec, cores: int) -> None:
    check_kernel(spec, cores, expert_mlp_inputs(spec, ROWS, integers=True), EXACT)
    check_kernel(spec, cores, expert_mlp_inputs(spec, ROWS, integers=False), CLOSE)


@pytest.mark.parametrize("rows", [(0, 0, 0), (0, 1), (256, 0, 5)], ids=str)
def test_groups_may_be_empty_and_whole(rows: tuple[int, ...]) -> None:
    check_kernel(RAGGED, 4, expert_mlp_inputs(RAGGED, rows, integers=True), EXACT)


def test_cores_without_tiles_pass_the_barrier() -> None:
    spec = ExpertMlpSpec(hidden=64, intermediate=64, tile=TILE)
    check_kernel(spec, 36, expert_mlp_inputs(spec, (0, 7), integers=True), EXACT)


def test_a_weight_of_zero_makes_a_row_of_zeros() -> None:
    given = expert_mlp_inputs(RAGGED, (40,), integers=True)
    given["weights"].fill_(0.0)
    outputs = check_kernel(RAGGED, 4, given, EXACT)
    assert (outputs["y"][:40] == 0).all()
    assert (outputs["y"][40:] == 77).all()


def test_a_row_with_nan_or_infinity_is_nan_and_no_other_row_is() -> None:
    given = expert_mlp_inputs(RAGGED, (40,), integers=True)
    given["x_scales"][2, 3] = -1  # both scales of a pair are 255
    given["weights"][7] = torch.inf
    outputs = check_kernel(RAGGED, 4, given, EXACT)
    is_nan = outputs["y"][:40].isnan()
    assert is_nan[[3, 7]].all()
    assert not is_nan[[row for row in range(40) if row not in (3, 7)]].any()


def test_the_last_group_may_end_with_the_rows() -> None:
    # m is no multiple of the alignment, and the stated end is behind it.
    given = expert_mlp_inputs(RAGGED, (3, 50), integers=True, m=300)
    given["grouped_layout"][-1] = 1000
    check_kernel(RAGGED, 4, given, EXACT)


def test_results_do_not_depend_on_the_core_count_or_the_tiles() -> None:
    results = []
    for tile, cores in ((TILE, 4), (None, 4), (None, 32)):
        spec = ExpertMlpSpec(hidden=320, intermediate=192, tile=tile)
        given = expert_mlp_inputs(spec, ROWS, integers=False)
        with schedule("eager", 0):
            expected = reference_of(spec, given)
            results.append(run_once(kernel(spec, cores), spec, given, expected, CLOSE))
    for other in results[1:]:
        assert torch.equal(results[0]["h"].view(torch.uint8), other["h"].view(torch.uint8))
        assert torch.equal(results[0]["h_scales"], other["h_scales"])
    assert torch.equal(results[1]["y"], results[2]["y"])


def test_one_launch_is_three_kernels_in_a_row_to_the_last_bit() -> None:
    hidden, inner, rows, clamp = 320, 192, (5, 0, 70), 24.0
    spec = ExpertMlpSpec(hidden=hidden, intermediate=inner, clamp=clamp, tile=TILE)
    # Sums are exact, gates are not special: the activation is rounded as it comes.
    given = expert_mlp_inputs(spec, rows, integers=True, gate_exponent=-3)
    products: dict[str, Any] = {"dtype_a": "e4m3", "dtype_b": "e2m1"}
    tile = GemmTile(block_m=32, block_n=64, block_k=64)
    first = GroupedGemmSpec(n=2 * inner, k=hidden, dtype_d="fp32", tile=tile, **products)
    middle = SwigluSpec(
        hidden=inner,
        dtype="fp32",
        weights=True,
        experts=len(rows),
        token_alignment=256,
        clamp=clamp,
        cast="e4m3",
        round_sf=True,
        scale_dtype="e8m0x2",
        col_major=True,
    )
    last = GroupedGemmSpec(n=hidden, k=inner, tile=tile, **products)
    m = len(given["x"])
    with schedule("eager", 0):
        gates_and_ups = torch.zeros((m, 2 * inner))
        launch(first, *(given[name] for name in ("x", "w1", "x_scales", "w1_scales")), gates_and_ups, given)
        h, h_scales = given["h"].clone(), given["h_scales"].clone()
        kernel(middle, 4).launch(gates_and_ups, given["weights"], given["grouped_layout"], h, h_scales)
        y = given["y"].clone()
        launch(last, h, given["w2"], h_scales, given["w2_scales"], y, given)
    check_kernel(spec, 4, given, EXACT, expected={"h": h, "h_scales": h_scales, "y": y})


def launch(spec: GroupedGemmSpec, a: Any, b: Any, sfa: Any, sfb: Any, d: Any, given: dict[str, Any]) -> None:
    kernel(spec, 4).launch(a, b, sfa, sfb, d, given["grouped_layout"])


def test_every_missing_synchronisation_is_noticed() -> None:
    # The barrier and the epilogues; how B is widened, which orders more than it has to, is another family's.
    spec = ExpertMlpSpec(hidden=320, intermediate=256, dtype_w="e4m3", tile=TILE)
    built, made = altered_kernel(spec, 4, switchable), mutants(lowered(spec, 4).source)
    given = expert_mlp_inputs(spec, (1, 0, 150, 33), integers=True)
    expected = reference_of(spec, given)

    def is_noticed(mutant: Mutant | None) -> bool:
        for name, seed in (("happens-before", 0), *(("adversarial", seed) for seed in range(8))):
            with removed(mutant), schedule(name, seed):
                try:
                    run_once(built, spec, given, expected)
                except (AssertionError, DeviceError):
                    return True
        return False

    assert not is_noticed(None)
    assert any("between blocks" in mutant.name for mutant in made)
    assert [mutant.name for mutant in made if not is_noticed(mutant)] == []


def test_tiles_follow_the_rows_of_a_group() -> None:
    few, many = (
        lowered(ExpertMlpSpec(groups=64, m=m, hidden=512, intermediate=256), 32).choices
        for m in (64 * 32, 2**20)
    )
    assert few["block_m"] <= 32 < many["block_m"]
    assert few["why"]["runners_up"]
