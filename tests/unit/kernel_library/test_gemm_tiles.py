"""Tile choice: what is chosen fits, uses the cores there are, and says what does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.cube.gemm_tiles import GemmTiles, effective_tiles, epilogue_ub_bytes, explain_tiles
from kaas.kernel_library.families.gemm import GemmSpec, problem_of
from kaas.kernel_library.targets import TARGETS, target_named
from kaas.proto.errors import DoesNotFit, InvalidSpec
from kaas.proto.target import Target

PARTS = ("Ascend950PR_950z", "Ascend950DT_950x", "Ascend950PR_9579", "Ascend950DT_9581", "Ascend950PR_9599")
EXTENTS = ((1, 7168, 2048), (17, 33, 5), (64, 2112, 7168), (4096, 4096, 4096), ("dynamic", 4104, 1000))


def specs() -> list[GemmSpec]:
    return [
        GemmSpec(m=m, n=n, k=k, dtype_a=dtype, dtype_b=dtype, dtype_d=dtype_d, accumulate=on, alpha=on)
        for m, n, k in EXTENTS
        for dtype in ("bf16", "fp32")
        for dtype_d in ("fp16", "fp32")
        for on in (False, True)
    ]


def tiles_of(spec: GemmSpec, target: Target) -> GemmTiles:
    return effective_tiles(problem_of(spec), target, spec.tile)


def require_that_it_fits(spec: GemmSpec, target: Target, tiles: GemmTiles) -> None:
    problem = problem_of(spec)
    assert 2 * tiles.block_m * tiles.mad_k * problem.input_bytes <= target.l0a_bytes
    assert 2 * tiles.block_n * tiles.mad_k * problem.input_bytes <= target.l0b_bytes
    assert tiles.l0c_stages * tiles.block_m * tiles.block_n * 4 <= target.l0c_bytes
    stage = (tiles.block_m + tiles.block_n) * tiles.block_k * problem.input_bytes
    assert tiles.l1_stages * stage <= target.l1_bytes
    if problem.vector_epilogue:
        used = epilogue_ub_bytes(problem, tiles.block_m, tiles.block_n, tiles.l0c_stages)
        assert used <= target.ub_bytes


@pytest.mark.parametrize("part", PARTS)
def test_chosen_tiles_fit_every_buffer(part: str) -> None:
    target = target_named(part)
    for spec in specs():
        tiles = tiles_of(spec, target)
        require_that_it_fits(spec, target, tiles)
        assert tiles.block_k % tiles.mad_k == 0
        assert tiles.l1_stages in (2, 4)


def refusal_of(act: Callable[..., object], *arguments: object) -> str | None:
    try:
        act(*arguments)
    except DoesNotFit as error:
        return error.message
    return None


@pytest.mark.parametrize("l0c_bytes", [1 << 9, 1 << 10, 1 << 18])
@pytest.mark.parametrize("tile", [None, GemmTile(block_m=128, block_n=256, block_k=64)])
def test_a_spec_is_refused_when_it_has_no_tiles_and_only_then(l0c_bytes: int, tile: GemmTile | None) -> None:
    target = msgspec.structs.replace(target_named(PARTS[2]), l0c_bytes=l0c_bytes)
    for spec in specs():
        given = msgspec.structs.replace(spec, tile=tile)
        assert refusal_of(given.check_target, target) == refusal_of(tiles_of, given, target)


def test_every_part_of_the_table_gets_tiles() -> None:
    for target in TARGETS.values():
        tiles_of(GemmSpec(n=4096, k=4096), target)


def test_few_rows_get_few_rows_of_tile() -> None:
    assert tiles_of(GemmSpec(m=1, n=7168, k=2048), target_named("Ascend950DT_9581")).block_m == 16
    assert tiles_of(GemmSpec(m=40, n=7168, k=2048), target_named("Ascend950DT_9581")).block_m <= 48


def test_a_narrow_problem_is_cut_until_most_cores_have_work() -> None:
    for part in PARTS[2:]:
        target = target_named(part)
        tiles = tiles_of(GemmSpec(m=64, n=4096, k=7168), target)
        count = math.ceil(64 / tiles.block_m) * math.ceil(4096 / tiles.block_n)
        assert count >= 0.75 * target.cube_cores


def test_tiles_follow_the_core_count() -> None:
    chosen = {part: tiles_of(GemmSpec(m=4096, n=4096, k=4096), target_named(part)) for part in PARTS[2:]}
    waves = {
        part: math.ceil(
            math.ceil(4096 / t.block_m) * math.ceil(4096 / t.block_n) / target_named(part).cube_cores
        )
        for part, t in chosen.items()
    }
    for part, tiles in chosen.items():
        # Less than a tenth of the cores' time is lost to padding and to the last wave.
        spent = waves[part] * target_named(part).cube_cores * tiles.block_m * tiles.block_n
        assert spent < 1.1 * 4096 * 4096


def test_an_explicit_tile_is_kept() -> None:
    tile = GemmTile(block_m=48, block_n=80, block_k=96)
    tiles = tiles_of(GemmSpec(n=4096, k=4096, tile=tile), target_named("Ascend950DT_9581"))
    assert (tiles.block_m, tiles.block_n, tiles.block_k) == (48, 80, 96)


@pytest.mark.parametrize(
    ("spec", "buffer", "excess"),
    [
        (
            GemmSpec(n=64, k=64, tile=GemmTile(block_m=256, block_n=256, block_k=512)),
            "L1",
            2 * 512 * 512 * 2 - 2**19,
        ),
        (
            GemmSpec(
                n=64, k=64, alpha=True, dtype_d="fp32", tile=GemmTile(block_m=256, block_n=256, block_k=64)
            ),
            "UB",
            128 * 256 * 8 - 248 * 1024,
        ),
    ],
    ids=["L1", "UB"],
)
def test_what_does_not_fit_is_named_with_its_excess(spec: GemmSpec, buffer: str, excess: int) -> None:
    with pytest.raises(DoesNotFit) as refusal:
        spec.check_target(target_named("Ascend950DT_9581"))
    assert refusal.value.details["buffer"] == buffer
    assert refusal.value.details["excess_bytes"] == excess
    assert refusal.value.details["field"] == "tile"


@pytest.mark.parametrize("buffer", ["l0a_bytes", "l0b_bytes", "l0c_bytes", "l1_bytes", "ub_bytes"])
def test_a_part_that_holds_no_tile_at_all_is_refused(buffer: str) -> None:
    target = msgspec.structs.replace(target_named("Ascend950DT_9581"), **{buffer: 256})
    with pytest.raises(DoesNotFit) as refusal:
        tiles_of(GemmSpec(n=64, k=64, alpha=True), target)
    assert refusal.value.details["buffer"] == buffer.removesuffix("_bytes").upper()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dtype_b": "fp16"}, "dtype_b"),
        ({"dtype_d": "int8"}, "dtype_d"),
        ({"layout": "NT"}, "layout"),
        ({"m": 0}, "m"),
        ({"n": 2**22 + 1}, "n"),
        ({"k": "any"}, "k"),
        ({"accumulate": 1}, "accumulate"),
    ],
)
def test_an_illegal_field_is_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        GemmSpec(**{"n": 64, "k": 64, **fields})
    assert refusal.value.details["field"] == field
    assert refusal.value.details["legal"]


def test_the_report_ranks_the_runners_up_behind_the_choice() -> None:
    for part in PARTS:
        target = target_named(part)
        for spec in specs():
            tiles = tiles_of(spec, target)
            why = explain_tiles(problem_of(spec), target, tiles, given=False)
            costs = [why["modelled_cycles"], *(one["modelled_cycles"] for one in why["runners_up"])]
            assert costs == sorted(costs)
            assert all(
                (one["block_m"], one["block_n"]) != (tiles.block_m, tiles.block_n)
                for one in why["runners_up"]
            )
            assert f"bound by {why['bound']}" in why["reason"]


def test_the_report_names_the_buffer_that_larger_tiles_exceed() -> None:
    spec = GemmSpec(n=4096, k=4096, alpha=True, accumulate=True, dtype_d="fp32")
    target = target_named("Ascend950DT_9581")
    why = explain_tiles(problem_of(spec), target, tiles_of(spec, target), given=False)
    assert why["too_large"]
    assert {one["buffer"] for one in why["too_large"]} == {"UB"}
    assert all(one["excess_bytes"] > 0 for one in why["too_large"])


def test_a_given_tile_is_reported_as_given() -> None:
    spec = GemmSpec(n=4096, k=4096, tile=GemmTile(block_m=32, block_n=32, block_k=64))
    target = target_named("Ascend950DT_9581")
    why = explain_tiles(problem_of(spec), target, tiles_of(spec, target), given=True)
    assert why["reason"] == "given by the spec"
    assert why["runners_up"][0]["modelled_cycles"] < why["modelled_cycles"]
