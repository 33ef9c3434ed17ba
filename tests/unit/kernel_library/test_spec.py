"""Specs: what is legal, and refusals that name the field and the legal values."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.kernel_library.cube.gemm_fields import GemmTile
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.kernel_library.registry import families, parse_spec, schemas
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.errors import InvalidSpec, UnknownFamily

GEMM: dict[str, Any] = {"family": "gemm", "n": 64, "k": 128}
RMSNORM: dict[str, Any] = {"family": "rmsnorm", "hidden": 7168}
TILE = {"block_m": 64, "block_n": 128, "block_k": 256}

# (base, field, legal values, illegal values): one field at a time, so that a JSON Schema can say it too.
MATRIX: list[tuple[dict[str, Any], str, list[Any], list[Any]]] = [
    *(
        (
            GEMM,
            extent,
            [1, 17, 2**22, "dynamic"],
            [0, -1, 2**22 + 1, 2**63, True, 1.5, "x", "Dynamic", None, [], {}],
        )
        for extent in ("m", "n", "k")
    ),
    (GEMM, "dtype_d", ["bf16", "fp16", "fp32"], ["fp8", "BF16", "", None, 1, ["bf16"]]),
    (GEMM, "dtype_a", ["bf16"], ["int8", None, 16]),
    (GEMM, "dtype_b", ["bf16"], ["int8", None, 16]),
    (GEMM, "layout", ["nt", "nn", "tn", "tt"], ["NT", "n", "", None, 0]),
    (GEMM, "accumulate", [True, False], [1, 0, "true", None]),
    (GEMM, "alpha", [True, False], [1, 0, "true", None, 1.0]),
    (GEMM, "tile", [None, TILE], [[], 5, "auto", {}, {"block_m": 64}, TILE | {"stages": 2}]),
    *(
        (
            GEMM,
            "tile",
            [TILE | {side: 16}, TILE | {side: 256}],
            [TILE | {side: bad} for bad in (0, 8, 24, 2048, "16", None, True)],
        )
        for side in TILE
    ),
    (RMSNORM, "hidden", [64, 576, 7168, 32768], [0, 48, 63, 72, 32784, "dynamic", 64.5, True, None]),
    (RMSNORM, "tokens", [1, 4096, "dynamic"], [0, -4, 2**31, "any", False, None]),
    (RMSNORM, "dtype", ["bf16", "fp16", "fp32"], ["int8", None]),
    (RMSNORM, "eps", [0.0, 1e-6, 1.0, 2.0**-126], [1e-300, -1e-9, 1.0001, "1e-6", None, True]),
    (RMSNORM, "residual", [True, False], [1, "no", None]),
    (RMSNORM, "weight", [True, False], [0, "no", None]),
    (RMSNORM, "out_scale", [1.0, -0.5, 65536.0], [65537.0, "1", None, True]),
    (RMSNORM, "rstd", [True, False], [0, "no", None]),
    (RMSNORM, "cast", ["none", "e4m3", "e2m1"], ["e5m2", "bf16", None, 8]),
    (RMSNORM, "round_sf", [False], [0, "no", None]),
    (RMSNORM, "col_major", [False], [0, "no", None]),
    (RMSNORM, "bf16_output", [False], [0, "no", None]),
    (RMSNORM | {"cast": "e4m3"}, "round_sf", [True, False], [0, "no", None]),
    (RMSNORM, "scale_dtype", ["fp32"], ["e4m3", None, 8]),
    (RMSNORM | {"cast": "e4m3"}, "col_major", [True, False], [0, "no", None]),
    (RMSNORM | {"cast": "e4m3"}, "bf16_output", [True, False], [0, "no", None]),
]


def cases(legal: bool) -> list[Any]:
    return [
        pytest.param(base, field, value, id=f"{base['family']}.{field}={json.dumps(value)}")
        for base, field, good, bad in MATRIX
        for value in (good if legal else bad)
    ]


@pytest.mark.parametrize(("base", "field", "value"), cases(legal=True))
def test_legal_values_are_taken_by_parser_and_schema(base: dict[str, Any], field: str, value: Any) -> None:
    record = base | {field: value}
    spec = parse_spec(record)
    assert spec.to_record()[field] == value
    assert jsonschema_rs.validator_for(schemas()[base["family"]]).is_valid(record)


@pytest.mark.parametrize(("base", "field", "value"), cases(legal=False))
def test_illegal_values_are_refused_by_parser_and_schema_alike(
    base: dict[str, Any], field: str, value: Any
) -> None:
    record = base | {field: value}
    assert not jsonschema_rs.validator_for(schemas()[base["family"]]).is_valid(record)
    for form in (record, json.dumps(record), json.dumps(record).encode()):
        with pytest.raises(InvalidSpec) as refused:
            parse_spec(form)
        assert refused.value.details["field"].split(".")[0] == field
        assert refused.value.details["legal"]
        assert field in refused.value.message


@pytest.mark.parametrize("base", [GEMM, RMSNORM], ids=["gemm", "rmsnorm"])
def test_the_matrix_covers_every_field(base: dict[str, Any]) -> None:
    covered = {field for record, field, _, _ in MATRIX if record is base}
    assert covered == set(schemas()[base["family"]]["properties"]) - {"family"}


@pytest.mark.parametrize("base", [GEMM, RMSNORM], ids=["gemm", "rmsnorm"])
def test_unknown_and_missing_fields_are_named(base: dict[str, Any]) -> None:
    schema = jsonschema_rs.validator_for(schemas()[base["family"]])
    with pytest.raises(InvalidSpec) as unknown:
        parse_spec(base | {"colour": "red"})
    assert unknown.value.details["field"] == "colour"
    assert set(unknown.value.details["legal"]) == set(schemas()[base["family"]]["properties"])
    assert not schema.is_valid(base | {"colour": "red"})
    for name in base.keys() - {"family"}:
        record = {field: value for field, value in base.items() if field != name}
        with pytest.raises(InvalidSpec) as missing:
            parse_spec(record)
        assert missing.value.details["field"] == name
        assert missing.value.details["legal"]
        assert not schema.is_valid(record)


def test_fields_inside_the_tile_are_named_with_their_place() -> None:
    for tile, field in (
        (TILE | {"stages": 2}, "tile.stages"),
        ({"block_m": 16, "block_n": 16}, "tile.block_k"),
        (TILE | {"block_n": "x"}, "tile.block_n"),
        (TILE | {"block_n": 24}, "tile.block_n"),
    ):
        with pytest.raises(InvalidSpec) as refused:
            parse_spec(GEMM | {"tile": tile})
        assert refused.value.details["field"] == field


def test_inputs_of_two_dtypes_are_refused() -> None:
    with pytest.raises(InvalidSpec) as refused:
        GemmSpec(n=64, k=64, dtype_a="fp16", dtype_b="bf16")
    assert refused.value.details == {"field": "dtype_b", "legal": ["fp16"]}


@pytest.mark.parametrize("eps", [math.nan, math.inf, -0.0, 1])
def test_constructors_refuse_what_has_no_single_text(eps: Any) -> None:
    with pytest.raises(InvalidSpec) as refused:
        RmsNormSpec(hidden=64, eps=eps)
    assert refused.value.details["field"] == "eps"


@pytest.mark.parametrize(
    ("field", "value"), [("n", True), ("n", 64.0), ("alpha", 1), ("layout", "xx"), ("tile", {})]
)
def test_constructors_check_like_the_parser(field: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as refused:
        GemmSpec(**({"n": 64, "k": 64} | {field: value}))
    assert refused.value.details["field"] == field


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b"null",
        b"{",
        b"\xff\xfe",
        b'"gemm"',
        b"[" * 50_000,
        b'{"family":"gemm","n":NaN,"k":1}',
        {1: 2},
    ],
)
def test_what_is_no_json_object_is_refused(text: Any) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(text)
    assert refused.value.details["field"] in ("spec", "family")


@pytest.mark.parametrize(
    ("name", "near"),
    [("gem", ["gemm"]), ("GEMM", None), ("rms_norm", ["rmsnorm"]), (None, None), (["gemm"], None)],
)
def test_an_unknown_family_is_refused_with_near_matches(name: Any, near: list[str] | None) -> None:
    with pytest.raises(UnknownFamily) as refused:
        parse_spec({"family": name, "n": 1})
    assert refused.value.details["legal"] == sorted(families())
    if near:
        assert refused.value.details["near"] == near
        assert "did you mean" in refused.value.message


extents = st.integers(1, 2**22) | st.just("dynamic")
tiles = st.builds(
    GemmTile,
    block_m=st.integers(1, 16).map(lambda x: 16 * x),
    block_n=st.integers(1, 16).map(lambda x: 16 * x),
    block_k=st.integers(1, 64).map(lambda x: 16 * x),
)
gemm_specs = st.sampled_from(["bf16", "fp16", "fp32"]).flatmap(
    lambda dtype: st.builds(
        GemmSpec,
        m=extents,
        n=extents,
        k=extents,
        dtype_a=st.just(dtype),
        dtype_b=st.just(dtype),
        dtype_d=st.sampled_from(["bf16", "fp16", "fp32"]),
        layout=st.sampled_from(["nt", "nn", "tn", "tt"]),
        accumulate=st.booleans(),
        alpha=st.booleans(),
        tile=st.none() | tiles,
    )
)
rmsnorm_specs = st.builds(
    RmsNormSpec,
    hidden=st.integers(4, 2048).map(lambda x: 16 * x),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    residual=st.booleans(),
    weight=st.booleans(),
    eps=st.just(0.0) | st.floats(2.0**-126, 1.0),
    tokens=st.integers(1, 2**31 - 1) | st.just("dynamic"),
)
specs: st.SearchStrategy[KernelSpec] = gemm_specs | rmsnorm_specs


@given(specs)
def test_specs_survive_json_and_their_schema_takes_them(spec: KernelSpec) -> None:
    text = spec.canonical()
    again = parse_spec(text)
    assert again == spec
    assert again.canonical() == text
    assert parse_spec(spec.to_record()) == spec
    assert jsonschema_rs.validator_for(schemas()[spec.family]).is_valid(json.loads(text))


@given(specs, specs)
def test_specs_are_equal_exactly_when_their_texts_are(left: KernelSpec, right: KernelSpec) -> None:
    assert (left == right) == (left.canonical() == right.canonical())


@given(specs)
def test_what_is_left_out_takes_its_default_and_the_same_text(spec: KernelSpec) -> None:
    properties = schemas()[spec.family]["properties"]
    short = {
        name: value
        for name, value in spec.to_record().items()
        if "default" not in properties[name] or properties[name]["default"] != value
    }
    assert parse_spec(short).canonical() == spec.canonical()


def test_specs_cannot_be_changed() -> None:
    spec = GemmSpec(n=64, k=64)
    with pytest.raises(AttributeError):
        spec.n = 65  # type: ignore[misc]
    assert {spec: 1}[GemmSpec(n=64, k=64)] == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"n": 1, "k": 1, "foo": 3}, "foo"), ({"n": 1}, "k"), ({"n": 10**5000, "k": 1}, "n")],
)
def test_wrong_keywords_and_endless_numbers_are_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        GemmSpec(**fields)
    assert refused.value.details["field"] == field
    assert len(refused.value.message) < 500


def test_foreign_integers_are_told_how_to_become_ints() -> None:
    with pytest.raises(InvalidSpec, match=r"int\(np\.int64\(4\)\)"):
        GemmSpec(n=np.int64(4), k=1)


def test_a_spec_far_beyond_any_real_one_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidSpec, match="at most 65536"):
        parse_spec(b'{"family": "' + b"x" * 70_000 + b'"}')


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (GEMM | {"n": "\ud800"}, "n"),
        (GEMM | {"\ud800": 1}, "\\ud800"),
        (GEMM | {"n": "x" * 100_000}, "n"),
        (GEMM | {"tile": {1: 2}}, "tile"),
    ],
    ids=["half a character", "half a name", "a long text", "a name that is no text"],
)
def test_a_refusal_is_short_text_that_names_the_field(record: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(record)
    assert caught.value.details["field"] == field
    assert caught.value.details["legal"]
    assert len(caught.value.message.encode()) < 500
