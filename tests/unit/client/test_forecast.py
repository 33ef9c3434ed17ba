"""What becomes of live kernels when something changes: exact where it is known, said where it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.client_store import PublishedStore, environment
from typer.testing import CliRunner

from kaas.client import cli, exit_status
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.rmsnorm import RmsNormSpec
from kaas.proto.compile_cost import COSTS_FILE
from kaas.proto.environment import Environment

OTHER = "Ascend950DT_9581"
GEMM, NORM = GemmSpec(n=64, k=64), RmsNormSpec(hidden=64)
LARGE = RmsNormSpec(hidden=32768, dtype="fp32", residual=True)


@pytest.fixture
def store(tmp_path: Path) -> PublishedStore:
    made = PublishedStore(tmp_path / "store")
    made.add(GEMM)
    made.add(NORM)
    return made


def kaas(store: PublishedStore, *words: str | Path) -> tuple[int, Any]:
    options = ("--store", store.root, "--socket", store.root / "nobody.sock", "--json")
    result = CliRunner().invoke(cli.app, ["forecast", *map(str, (*words, *options))])
    return result.exit_code, json.loads(result.stdout or result.stderr)


def refusal_of(store: PublishedStore, *words: str) -> tuple[int, Any]:
    """Where a forecast may come before the refusal."""
    options = ("--store", str(store.root), "--socket", str(store.root / "nobody.sock"), "--json")
    result = CliRunner().invoke(cli.app, ["forecast", *words, *options])
    return result.exit_code, json.loads(result.stderr)


def states(answer: dict[str, Any]) -> dict[str, str]:
    return {kernel["family"]: kernel["state"] for kernel in answer["kernels"]}


def file_of(tmp_path: Path, changed: Environment) -> Path:
    path = tmp_path / "plain.json"
    path.write_bytes(msgspec.json.encode(changed))
    return path


def changed_toolchain(**fields: Any) -> Environment:
    before = environment()
    return environment(toolchain=msgspec.structs.replace(before.toolchain, **fields))


def test_another_part_needs_every_spec_once_more(store: PublishedStore) -> None:
    status, answer = kaas(store, "--sku", OTHER)
    assert (status, answer["certainty"], answer["use_is_known"]) == (0, "exact", False)
    assert states(answer) == {"gemm": "cold", "rmsnorm": "cold"}
    assert all(kernel["why"].startswith("target.") for kernel in answer["kernels"])
    store.add(GEMM, OTHER)
    assert states(kaas(store, "--sku", OTHER)[1]) == {"gemm": "prebuilt", "rmsnorm": "cold"}


def test_a_forecast_key_is_the_key_that_the_other_part_will_ask_for(store: PublishedStore) -> None:
    _, answer = kaas(store, "--sku", OTHER)
    told = {kernel["family"]: kernel["new_key"] for kernel in answer["kernels"]}
    assert store.add(GEMM, OTHER).stem == told["gemm"]


def test_the_nodes_own_part_changes_nothing(store: PublishedStore) -> None:
    _, answer = kaas(store, "--sku", environment().target.soc_name)
    assert states(answer) == {"gemm": "unchanged", "rmsnorm": "unchanged"}
    assert answer["totals"]["cpu_minutes"] == 0


def test_what_has_no_room_on_a_part_cannot_be_had(store: PublishedStore) -> None:
    store.add(LARGE)
    _, answer = kaas(store, "--sku", OTHER)
    (unserved,) = [kernel for kernel in answer["kernels"] if kernel["state"] == "unserved"]
    assert unserved["spec"]["hidden"] == 32768
    assert "UB" in unserved["why"]


def test_another_cann_version_is_certain_to_change_all_keys_to_unknown_ones(store: PublishedStore) -> None:
    _, answer = kaas(store, "--cann", "9.3.0")
    assert (answer["certainty"], set(states(answer).values())) == ("certain", {"cold"})
    assert {kernel["new_key"] for kernel in answer["kernels"]} == {None}


def test_the_same_cann_version_is_only_assumed_to_be_the_same_toolkit(store: PublishedStore) -> None:
    _, answer = kaas(store, "--cann", "9.2.0")
    assert (answer["certainty"], set(states(answer).values())) == ("assumed", {"unchanged"})
    assert any("byte for byte" in text for text in answer["assumptions"])


def test_an_unknown_kaas_version_is_said_to_be_an_assumption(store: PublishedStore) -> None:
    _, answer = kaas(store, "--kaas-version", "9.9.9")
    assert (answer["certainty"], set(states(answer).values())) == ("assumed", {"cold"})
    assert any("9.9.9" in text and "not known" in text for text in answer["assumptions"])


def test_an_environment_file_tells_kernels_apart_by_their_familys_digest(
    store: PublishedStore, tmp_path: Path
) -> None:
    after = environment(kaas_version="0.2.0", family_digests={"gemm": "9" * 64, "rmsnorm": "8" * 64})
    _, answer = kaas(store, "--kaas-version", "0.2.0", "--environment", file_of(tmp_path, after))
    assert answer["certainty"] == "exact"
    assert states(answer) == {"gemm": "cold", "rmsnorm": "unchanged"}
    assert [kernel["why"] for kernel in answer["kernels"] if kernel["state"] == "cold"] == [
        "generator.family_digest"
    ]


def test_the_file_that_another_store_published_is_read_as_it_lies(
    store: PublishedStore, tmp_path: Path
) -> None:
    other = PublishedStore(tmp_path / "other", changed_toolchain(bisheng_digest="a" * 64))
    _, answer = kaas(store, "--environment", other.root / "environment.json")
    assert answer["certainty"] == "exact"
    assert {kernel["why"] for kernel in answer["kernels"]} == {"toolchain.bisheng_digest"}
    assert {kernel["new_key"] for kernel in answer["kernels"]} == {other.add(GEMM).stem, other.add(NORM).stem}


def test_a_family_that_is_gone_cannot_be_had(store: PublishedStore, tmp_path: Path) -> None:
    after = environment(family_digests={"gemm": "7" * 64})
    _, answer = kaas(store, "--environment", file_of(tmp_path, after))
    assert states(answer) == {"gemm": "unchanged", "rmsnorm": "unserved"}


def test_kernels_that_nobody_asks_for_today_are_not_counted(store: PublishedStore, tmp_path: Path) -> None:
    older = PublishedStore(tmp_path / "older", changed_toolchain(cann_version="9.1.0"))
    stale = older.add(GEMM)
    (store.root / "artifacts" / stale.stem[:2]).mkdir(exist_ok=True)
    stale.rename(store.layout.artifact_path(stale.stem))
    broken = store.add(GemmSpec(n=128, k=64))
    broken.write_bytes(broken.read_bytes()[:-1])
    _, answer = kaas(store, "--cann", "9.3.0")
    assert (answer["stale"], answer["damaged"], answer["totals"]["kernels"]) == (1, 1, 2)


def test_rebuilding_is_reckoned_from_learned_costs(store: PublishedStore) -> None:
    costs = {
        "gemm": {
            "peak_bytes": 300 << 20,
            "least_bytes": 1,
            "seconds": 4.0,
            "cpu_seconds": 2.0,
            "compiles": 5,
        },
        "rmsnorm": {
            "peak_bytes": 100 << 20,
            "least_bytes": 1,
            "seconds": 1.0,
            "cpu_seconds": 1.0,
            "compiles": 5,
        },
    }
    (store.root / COSTS_FILE).write_text(json.dumps(costs))
    _, answer = kaas(store, "--cann", "9.3.0", "--workers", "2")
    totals = answer["totals"]
    # Each took 2 s here; half of a gemm's time is work, all of a norm's.
    assert totals["cpu_minutes"] == pytest.approx(3 / 60)
    assert totals["wall_minutes"] == pytest.approx(2 / 60, abs=1e-3)
    assert (totals["peak_bytes_of_one"], totals["peak_bytes_at_once"]) == (300 << 20, 400 << 20)
    assert answer["families_without_history"] == []
    assert kaas(store, "--cann", "9.3.0", "--workers", "1")[1]["totals"]["peak_bytes_at_once"] == 300 << 20


def test_what_goes_cold_is_written_as_a_manifest_for_the_builders(
    store: PublishedStore, tmp_path: Path
) -> None:
    manifest = tmp_path / "cold.json"
    kaas(store, "--sku", OTHER, "--manifest-out", manifest)
    document = json.loads(manifest.read_text())
    assert len(document["kernels"]) == 2
    assert OTHER in manifest.read_text()
    result = CliRunner().invoke(cli.app, ["manifest", "lint", str(manifest), "--strict"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ((), "change"),
        (("--cann", "nine"), "cann"),
        (("--sku", "Ascend950XX"), "soc_name"),
        (("--toolkit", "/nowhere", "--environment", "/nowhere"), "toolkit"),
        (("--environment", "/nowhere/environment.json"), "environment"),
        (("--toolkit", "/nowhere", "--kaas-version", "9.9.9"), "kaas_version"),
        (("--cann", "9.3.0", "--prebuild"), "prebuild"),
        (("--sku", OTHER, "--bundle", "x.tar"), "bundle"),
    ],
)
def test_plans_that_make_no_sense_name_their_option(
    store: PublishedStore, words: tuple[str, ...], field: str
) -> None:
    status, error = refusal_of(store, *words)
    assert status == exit_status.USAGE
    assert error["details"]["field"] == field
    assert error["details"]["legal"]


def test_an_environment_that_is_not_the_version_it_was_said_to_be_is_refused(
    store: PublishedStore, tmp_path: Path
) -> None:
    path = file_of(tmp_path, environment())
    status, error = kaas(store, "--environment", path, "--kaas-version", "0.2.0")
    assert (status, error["details"]["field"], error["details"]["legal"]) == (2, "kaas_version", ["0.1.0"])


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_damaged_environment_file_is_refused(store: PublishedStore, tmp_path: Path, damage: str) -> None:
    content = (store.root / "environment.json").read_bytes()
    changed = content[:-9] if damage == "truncated" else content.replace(b"9.2.0", b"9.9.0", 1)
    path = tmp_path / "environment.json"
    path.write_bytes(changed)
    status, error = kaas(store, "--environment", path)
    assert (status, error["details"]["field"]) == (2, "environment")


def test_another_installations_kernels_are_not_built_here(store: PublishedStore, tmp_path: Path) -> None:
    after = file_of(tmp_path, environment(lowering_digest="e" * 64))
    status, error = refusal_of(store, "--environment", str(after), "--prebuild")
    assert (status, error["details"]["field"]) == (exit_status.USAGE, "prebuild")


def test_a_store_that_no_daemon_ever_served_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["forecast", "--cann", "9.3.0", "--store", str(tmp_path)])
    assert result.exit_code == exit_status.NODE_TROUBLE
    assert "start its daemon" in result.stderr
