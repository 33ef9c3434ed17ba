"""Shards of a manifest: each kernel in exactly one, even, stable, and the same whoever computes them."""

import random
from collections.abc import Sequence

import pytest

from kaas.client.compile_plan import CostTable, cost_table
from kaas.client.manifest import Entry
from kaas.client.sharding import Shard, parse_shard, split
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.proto.compile_cost import FamilyCost
from kaas.proto.errors import InvalidRequest

A, B = "Ascend950PR_9579", "Ascend950DT_9581"
DEAR_NORMS = cost_table(
    {
        "gemm": FamilyCost(peak_bytes=1, least_bytes=1, seconds=2.0, compiles=1),
        "rmsnorm": FamilyCost(peak_bytes=1, least_bytes=1, seconds=20.0, compiles=1),
    }
)


def manifest(gemms: int, norms: int, soc_name: str = A) -> list[Entry]:
    specs = [GemmSpec(n=64 * n, k=128) for n in range(1, gemms + 1)]
    specs += [RmsNormSpec(hidden=64 * n) for n in range(1, norms + 1)]
    return [Entry(spec, soc_name, line) for line, spec in enumerate(specs, 1)]


def homes(entries: Sequence[Entry], count: int, costs: CostTable) -> dict[bytes, int]:
    """Which shard each spec is in."""
    shards = split(entries, count, costs)
    return {entries[i].spec.canonical(): number for number, part in enumerate(shards) for i in part}


@pytest.mark.parametrize("count", [1, 2, 7, 16, 300])
def test_every_entry_is_in_exactly_one_shard(count: int) -> None:
    entries = manifest(120, 30)
    shards = split(entries, count, DEAR_NORMS)
    assert len(shards) == count
    assert sorted(position for part in shards for position in part) == list(range(150))


@pytest.mark.parametrize("count", [2, 5, 8])
def test_shards_cost_about_the_same_although_families_do_not(count: int) -> None:
    entries = manifest(200, 40)
    loads = [
        sum(DEAR_NORMS.seconds(entries[i].spec.family) for i in part)
        for part in split(entries, count, DEAR_NORMS)
    ]
    mean = sum(loads) / count
    assert max(loads) <= 1.11 * mean
    assert min(loads) >= 0.5 * mean


def test_another_kernel_moves_few() -> None:
    entries = manifest(300, 60)
    before = homes(entries, 8, DEAR_NORMS)
    moved = []
    for extra in range(20):
        after = homes([*entries, Entry(GemmSpec(n=96 + 64 * extra, k=64), A, 999)], 8, DEAR_NORMS)
        moved.append(sum(after[spec] != shard for spec, shard in before.items()))
    assert sum(moved) / len(moved) <= 0.02 * len(before)
    assert max(moved) <= 0.06 * len(before)


def test_the_order_of_the_manifest_does_not_matter() -> None:
    entries = manifest(50, 10)
    shuffled = random.Random(7).sample(entries, len(entries))
    assert homes(entries, 4, DEAR_NORMS) == homes(shuffled, 4, DEAR_NORMS)


def test_one_kernel_that_is_wanted_twice_is_compiled_by_one_shard() -> None:
    entries = manifest(40, 0)
    doubled = [*entries, *entries]
    for part in split(doubled, 8, CostTable()):
        assert {i % 40 for i in part} == {i for i in part if i < 40}


def test_targets_that_may_turn_out_to_be_one_stay_together() -> None:
    entries = [*manifest(40, 0, ""), *manifest(40, 0, A), *manifest(40, 0, B)]
    for part in split(entries, 8, CostTable()):
        assert {i for i in part if i < 40} == {i % 40 for i in part if i >= 40}


def test_named_targets_are_split_apart() -> None:
    entries = [*manifest(40, 0, A), *manifest(40, 0, B)]
    named = [entry._replace(cann="9.2.0") for entry in entries]
    shard_of = {i: number for number, part in enumerate(split(named, 8, CostTable())) for i in part}
    assert any(shard_of[i] != shard_of[i + 40] for i in range(40))


def test_each_cann_versions_entries_are_even_by_themselves() -> None:
    entries = [entry._replace(cann=cann) for cann in ("9.2.0", "9.3.0") for entry in manifest(80, 0)]
    for part in split(entries, 4, CostTable()):
        for first in (0, 80):
            assert 10 <= sum(first <= i < first + 80 for i in part) <= 22


@pytest.mark.parametrize(
    ("text", "environ", "shard"),
    [
        ("0/1", {}, Shard(0, 1)),
        ("3/8", {"JOB_COMPLETION_INDEX": "1"}, Shard(3, 8)),
        ("auto/4", {"JOB_COMPLETION_INDEX": "2"}, Shard(2, 4)),
        ("auto", {"JOB_COMPLETION_INDEX": "2", "KAAS_SHARD_COUNT": "3"}, Shard(2, 3)),
        (
            "auto",
            {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "8"},
            Shard(4, 8),
        ),
        (
            "auto",
            {
                "SLURM_ARRAY_TASK_ID": "6",
                "SLURM_ARRAY_TASK_MIN": "0",
                "SLURM_ARRAY_TASK_STEP": "2",
                "SLURM_ARRAY_TASK_COUNT": "4",
            },
            Shard(3, 4),
        ),
    ],
)
def test_which_shard_this_is(text: str, environ: dict[str, str], shard: Shard) -> None:
    assert parse_shard(text, environ) == shard


@pytest.mark.parametrize(
    ("text", "environ", "field"),
    [
        ("4/4", {}, "shard"),
        ("0/0", {}, "shard"),
        ("-1/4", {}, "shard"),
        ("1", {}, "shard"),
        ("first", {}, "shard"),
        ("auto", {}, "shard"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "shard"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}, "shard"),
        ("auto/2", {"JOB_COMPLETION_INDEX": "zero"}, "JOB_COMPLETION_INDEX"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "3"}, "SLURM_ARRAY_TASK_COUNT"),
        (
            "auto",
            {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "3"},
            "shard",
        ),
    ],
)
def test_what_is_no_shard_is_refused_with_its_field(text: str, environ: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_shard(text, environ)
    assert refused.value.details["field"] == field
    assert refused.value.details["legal"]
