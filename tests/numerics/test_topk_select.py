"""topk_select on the CPU twin: sets, order, values and fills to the bit, in every schedule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from support.kernel_checks import EXACT, Close, Comparison, check_kernel, reference_of, run_once
from support.twin_kernels import kernel
from support.twin_toolkit import schedule

from kaas.kernel_library.families.topk_select import SelectTile, TopkSelectSpec

MARK = 0x3F3F3F3F
TINY = SelectTile(chunk=256, slots=2)
"""So small that a row of some thousand values goes round the ring in every pass."""
EVERYTHING = TopkSelectSpec(topk=33, end=True, output_idx_offset=True, nan_flags=True, tile=TINY)
SHARED = msgspec.structs.replace(EVERYTHING, parts=4)
INF, NAN = torch.inf, torch.nan
SHARED_RESULTS: dict[str, Comparison] = {
    "output_idx": EXACT,
    "output_val": EXACT,
    "nan_found": EXACT,
    "exchange": Close(absolute=INF),  # a workspace: anything
}


def scores(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """Normal bf16 values: in long rows many are equal."""
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)).bfloat16()


def any_number(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    """All bit patterns but NaN, infinities and both zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, (rows, vocab), generator=generator).to(torch.int16)
    values = bits.view(torch.bfloat16)
    return torch.where(values.isnan(), torch.zeros_like(values), values)


def inputs_for(spec: TopkSelectSpec, values: torch.Tensor, **given: Any) -> dict[str, Any]:
    rows = len(values)
    inputs: dict[str, Any] = {"input": values, "idx_oob_fill_value": 2**31 - 1}
    if spec.return_value:
        inputs["value_oob_fill_value"] = -INF
    if spec.end:
        inputs["end"] = torch.full((rows,), values.shape[1], dtype=torch.int32)
    if spec.output_idx_offset:
        inputs["output_idx_offset"] = torch.arange(rows, dtype=torch.int32) * 1000 - 1500
    if spec.parts > 1:
        inputs["exchange"] = torch.full((128, 640), -1, dtype=torch.int16)
    for name, value in given.items():
        inputs[name] = torch.tensor(value, dtype=torch.int32) if isinstance(value, list) else value
    return inputs


def assert_is_a_top_k(values: torch.Tensor, end: int, topk: int, indices: torch.Tensor) -> None:
    """The definition itself, without a sort: different places in range, none left out that is larger."""
    held = min(end, topk)
    places = indices[:held].long()
    assert places.unique().numel() == held
    assert int(places.min()) >= 0
    assert int(places.max()) < end
    is_chosen = torch.zeros(end, dtype=torch.bool)
    is_chosen[places] = True
    row = values[:end].double()
    if held < end:
        assert row[is_chosen].min() >= row[~is_chosen].max()


K_AND_VOCAB = [
    (1, 1, 4),
    (1, 3000, 4),
    (7, 300, 28),
    (128, 129, 4),
    (512, 1500, 4),
    (513, 2000, 8),
    (2048, 5000, 32),
    (4096, 6000, 36),
    (4096, 4096, 4),
]


@pytest.mark.parametrize(
    ("topk", "vocab", "cores"),
    [pytest.param(*case, marks=[] if case[0] == 512 else pytest.mark.slow) for case in K_AND_VOCAB],
)
def test_a_row_gives_its_largest_values_in_order(topk: int, vocab: int, cores: int) -> None:
    spec = TopkSelectSpec(topk=topk, sorted_index=True, tile=TINY)
    values = any_number(5, vocab)
    found = check_kernel(spec, cores, inputs_for(spec, values))
    for row, indices in zip(values, found["output_idx"], strict=True):
        assert_is_a_top_k(row, vocab, topk, indices)
        assert indices[: min(vocab, topk)].diff().gt(0).all()


@pytest.mark.parametrize("vocab", [255, 256, 257, 511, 512, 513, 767, 768, 769, 1281])
@pytest.mark.parametrize(
    "slots", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_rows_that_end_at_the_edges_of_chunks_and_rings(vocab: int, slots: int) -> None:
    spec = msgspec.structs.replace(EVERYTHING, tile=SelectTile(chunk=256, slots=slots))
    check_kernel(spec, 4, inputs_for(spec, scores(11, vocab, seed=vocab)))


@pytest.mark.parametrize(
    ("topk", "cores"),
    [
        pytest.param(topk, cores, marks=[] if topk == 33 else pytest.mark.slow)
        for topk, cores in ((1, 4), (33, 4), (512, 28), (513, 32), (2048, 4), (4096, 36))
    ],
)
def test_ends_around_k_and_of_all_lengths_in_one_launch(topk: int, cores: int) -> None:
    spec = msgspec.structs.replace(EVERYTHING, topk=topk)
    vocab = topk + 700
    ends = [
        0,
        1,
        max(topk - 1, 0),
        topk,
        topk + 1,
        255,
        256,
        257,
        512,
        513,
        vocab - 1,
        vocab,
        -5,
        vocab + 9,
        2,
    ]
    values = scores(len(ends), vocab)
    found = check_kernel(
        spec, cores, inputs_for(spec, values, end=ends, idx_oob_fill_value=-7, value_oob_fill_value=1.2345)
    )
    fills = found["output_idx"].eq(-7).sum(1).tolist()
    assert fills == [topk - min(max(end, 0), vocab, topk) for end in ends]
    assert found["output_val"][0].eq(torch.tensor(1.2345).bfloat16()).all()


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.5, -2.25, INF, -INF, pytest.param(3.3895e38, marks=pytest.mark.slow)]
)
def test_equal_values_go_to_the_lower_index(value: float) -> None:
    values = torch.full((3, 2100), value).bfloat16()
    given = {"end": [2100, 34, 33], "output_idx_offset": [0, 0, 0]}
    found = check_kernel(EVERYTHING, 4, inputs_for(EVERYTHING, values, **given))
    assert torch.equal(found["output_idx"], torch.arange(33, dtype=torch.int32).expand(3, 33))


@pytest.mark.slow
def test_a_long_row_of_equal_values_overflows_no_counter() -> None:
    """More of them than 16 bits count, behind a few larger ones."""
    spec = TopkSelectSpec(topk=4096, return_value=False)
    values = torch.full((1, 200_001), -1.0).bfloat16()
    values[0, 150_000:150_100] = 1.0
    found = run_in_order(spec, 4, inputs_for(spec, values))["output_idx"][0]
    assert found[:3996].tolist() == list(range(3996))
    assert found[3996:].tolist() == list(range(150_000, 150_100))


def test_plus_zero_ranks_above_minus_zero_and_infinities_where_they_belong() -> None:
    """Row by row: best ones beside 30 that are better than all else, behind them."""
    rows = torch.full((4, 600), -1.0)
    rows[0, ::2] = -0.0
    rows[0, [591, 301, 5]] = 0.0
    rows[1, :] = -INF
    rows[1, [500, 40]] = torch.tensor([INF, -3.3e38])
    rows[2, [1, 2, 300, 301, 591]] = torch.tensor([1e-40, -1e-40, 0.0, -0.0, 9.2e-41])
    rows[3, :] = 3.3e38
    rows[3, [7, 300]] = INF
    rows[:3, 570:] = 1.0
    rows[3, 570:] = INF
    rows[0, 591] = rows[2, 591] = 1.0
    given = {"output_idx_offset": [0] * 4}
    found = check_kernel(EVERYTHING, 4, inputs_for(EVERYTHING, rows.bfloat16(), **given))["output_idx"]
    assert [row[:3] for row in found.tolist()] == [[0, 5, 301], [0, 40, 500], [1, 300, 301], [0, 7, 300]]


NAN_BITS = {"quiet": 0x7FC0, "negative": -0x40, "smallest payload": 0x7F81, "all ones": -1}


@pytest.mark.parametrize("kind", [*NAN_BITS])
def test_a_nan_marks_its_whole_row_and_no_other(kind: str) -> None:
    values = any_number(8, 1100)
    bits = values.view(torch.int16)
    for row, place in ((1, 0), (2, 1099), (3, 700), (4, 30)):
        bits[row, place] = NAN_BITS[kind]
    # Row 3 ends right before its NaN, row 4 has fewer than k values; row 6 is all NaN, behind an end of 0.
    bits[6] = NAN_BITS[kind]
    ends = [1100, 1100, 1100, 700, 31, 1100, 0, 40]
    found = check_kernel(EVERYTHING, 4, inputs_for(EVERYTHING, values, end=ends, value_oob_fill_value=7.0))
    assert found["nan_found"].tolist() == [0, 1, 1, 0, 1, 0, 0, 0]
    assert found["output_idx"].eq(MARK).all(1).tolist() == [
        False,
        True,
        True,
        False,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.slow
def test_a_row_of_nothing_but_nan() -> None:
    spec = TopkSelectSpec(topk=5, vocab=300, nan_flags=True)
    found = check_kernel(spec, 4, inputs_for(spec, torch.full((3, 300), NAN).bfloat16()))
    assert found["output_idx"].eq(MARK).all()
    assert found["nan_found"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("fill", "value"), [(2**31 - 1, -INF), (-1, NAN), (0, 3.3895e38), (-(2**31), 1.00390625)]
)
def test_fills_are_not_moved_and_round_to_bf16(fill: int, value: float) -> None:
    given = {"end": [0, 32, 33], "idx_oob_fill_value": fill, "value_oob_fill_value": value}
    check_kernel(EVERYTHING, 4, inputs_for(EVERYTHING, scores(3, 300), **given))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        TopkSelectSpec(topk=512, return_value=False, sorted_index=True),
        TopkSelectSpec(topk=100, vocab=1000, rows=9),
        TopkSelectSpec(topk=2048, end=True, return_value=False, nan_flags=True),
        TopkSelectSpec(topk=64, output_idx_offset=True),
        TopkSelectSpec(topk=64, vocab=1000, rows=9, nan_flags=True),
    ],
    ids=["indices only", "static", "no values", "offset", "flags"],
)
def test_what_a_spec_leaves_out_is_not_missed(spec: TopkSelectSpec) -> None:
    check_kernel(spec, 8, inputs_for(spec, scores(9, 1000)))


def test_no_rows_and_rows_of_nothing() -> None:
    given = {"value_oob_fill_value": 2.0}
    check_kernel(EVERYTHING, 4, inputs_for(EVERYTHING, torch.empty((0, 72)).bfloat16(), **given))
    found = check_kernel(EVERYTHING, 4, inputs_for(EVERYTHING, torch.empty((3, 0)).bfloat16(), **given))
    assert found["output_idx"].eq(2**31 - 1).all()


@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_cores() -> None:
    ends = torch.randint(0, 901, (83,), generator=torch.Generator().manual_seed(1)).int()
    inputs = inputs_for(EVERYTHING, scores(83, 900), end=ends)
    found = [check_kernel(EVERYTHING, cores, inputs)["output_idx"] for cores in (8, 28, 32, 36)]
    assert all(one.equal(found[0]) for one in found)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, pytest.param(19, marks=pytest.mark.slow)])
def test_cores_that_share_a_row_agree(rows: int) -> None:
    """On eight vector cores: four, two or one for a row, in one wave or more."""
    generator = torch.Generator().manual_seed(rows)
    ends = torch.randint(0, 3001, (rows,), generator=generator).int()
    ends[0] = 3000
    inputs = inputs_for(SHARED, any_number(rows, 3000, seed=rows), end=ends)
    check_kernel(SHARED, 4, inputs, SHARED_RESULTS)


def test_no_rows_to_share() -> None:
    inputs = inputs_for(SHARED, torch.empty((0, 3000)).bfloat16(), end=[], output_idx_offset=[])
    assert check_kernel(SHARED, 4, inputs, SHARED_RESULTS)["output_idx"].shape == (0, SHARED.topk)


@pytest.mark.parametrize("end", [0, 1, 32, 33, 34, 127, 128, 129, 512, 513, 2999])
def test_a_shared_row_of_any_length(end: int) -> None:
    """Some parts have nothing, or less than k."""
    check_kernel(SHARED, 4, inputs_for(SHARED, scores(2, 3000), end=[end, 3000 - end]), SHARED_RESULTS)


def test_equal_values_of_a_shared_row_go_to_the_lower_index() -> None:
    values = torch.full((2, 3000), -1.0).bfloat16()
    values[0, 2990:] = 1.0
    values[1, [700, 1400, 2100, 2800]] = 1.0
    given = {"output_idx_offset": [0, 0]}
    found = check_kernel(SHARED, 4, inputs_for(SHARED, values, **given), SHARED_RESULTS)["output_idx"]
    assert found[0].tolist() == [*range(23), *range(2990, 3000)]
    assert found[1].tolist() == [*range(29), 700, 1400, 2100, 2800]


def test_a_nan_marks_a_row_in_all_its_parts() -> None:
    values = scores(2, 3000)
    values[1, 2500] = NAN
    found = check_kernel(SHARED, 4, inputs_for(SHARED, values), SHARED_RESULTS)
    assert found["output_idx"].eq(MARK).all(1).tolist() == [False, True]
    assert found["nan_found"].tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("cores", [8, 28, 32, 36])
def test_a_single_row_on_as_many_cores_as_may_share_it(cores: int) -> None:
    spec = TopkSelectSpec(topk=2048, nan_flags=True, parts=32)
    for rows in (1, 3):
        check_kernel(spec, cores, inputs_for(spec, scores(rows, 20_001)), SHARED_RESULTS)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [8, 32])
def test_a_default_tile_on_other_parts(cores: int) -> None:
    spec = TopkSelectSpec(topk=512, end=True)
    ends = [20_000, 513, 16_384, 16_385]
    check_kernel(spec, cores, inputs_for(spec, any_number(4, 20_000), end=ends))


def test_the_indexer_of_a_sparse_attention() -> None:
    """k = 2048 of causal rows, some in UB for all passes, some longer."""
    spec = TopkSelectSpec(topk=2048, end=True, return_value=False, sorted_index=True)
    tile = kernel(spec, 32).lowered.choices
    most = tile["chunk"] * tile["slots"]
    ends = [2047, 8192, tile["chunk"] + 1, most, most + 1]
    values = scores(len(ends), most + 1)
    found = run_in_order(spec, 32, inputs_for(spec, values, end=ends))["output_idx"]
    for row, end, indices in zip(values, ends, found, strict=True):
        assert_is_a_top_k(row, end, 2048, indices)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topk", "vocab", "parts"),
    [(512, 300_000, 1), (4096, 65_537, 1), (1024, 2 * 1024 * 1024 - 1, 1), (512, 2 * 1024 * 1024 - 1, 4)],
)
def test_long_rows(topk: int, vocab: int, parts: int) -> None:
    """Of four parts, each is longer than 16 bits count."""
    spec = TopkSelectSpec(topk=topk, sorted_index=True, parts=parts)
    values = scores(2, vocab)
    # The best ones lie at both ends and at the edges of 64 Ki places.
    for place in (0, vocab - 1, 65_535, 65_536):
        values[:, place] = 1000.0
    found = run_in_order(spec, 32, inputs_for(spec, values))["output_idx"]
    for row, indices in zip(values, found, strict=True):
        assert_is_a_top_k(row, vocab, topk, indices)
        assert {0, 65_535, 65_536, vocab - 1} <= set(indices.tolist())


def run_in_order(spec: TopkSelectSpec, cores: int, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """One run in program order, for rows whose length is what matters."""
    with schedule("eager", 0):
        return run_once(kernel(spec, cores), spec, inputs, reference_of(spec, inputs), SHARED_RESULTS)
