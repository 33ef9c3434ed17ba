"""The command line: what it takes, what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.client_store import PublishedStore
from typer.testing import CliRunner, Result

from kaas.client import cli, device, exit_status
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.proto import errors
from kaas.proto.errors import KaasError

SPEC = GemmSpec(n=64, k=64)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PublishedStore]:
    monkeypatch.setenv("KAAS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KAAS_SOCKET", str(tmp_path / "kaas.sock"))
    monkeypatch.setattr("kaas.client.socket_probe.PATIENCE_S", 0.0)
    monkeypatch.setattr("kaas.client.daemon_link.PATIENCE_S", 0.0)
    yield PublishedStore(tmp_path / "store")
    device._devices.clear()


def kaas(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, words, input=stdin)


def test_get_finds_a_kernel_in_the_store(store: PublishedStore) -> None:
    path = store.add(SPEC)
    result = kaas("get", "gemm", "n=64", "k=64", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["key"] == path.stem
    assert facts["outcome"] == "hit"
    assert facts["path"] == str(path)
    assert path.stem in kaas("get", "gemm", "n=64", "k=64").stdout


@pytest.mark.parametrize(
    "words",
    [
        ["family=gemm", "n=64", "k=64"],
        ['{"family": "gemm", "n": 64, "k": 64}'],
        ['{"family":', '"gemm",', '"n": 64, "k": 64}'],
        ["gemm", "n=64", "k=64", "m=dynamic", "accumulate=false", "dtype_a=bf16", "tile=null"],
        ["-"],
        ["SPEC.yaml"],
    ],
)
def test_a_spec_can_be_written_in_several_ways(
    store: PublishedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("SPEC.yaml").write_text("family: gemm\nn: 64\nk: 64\n")
    store.add(SPEC)
    result = kaas("get", *words, "--strict", stdin="family: gemm\nn: 64\nk: 64\n")
    assert result.exit_code == 0, result.output


def test_nested_fields_are_dotted(store: PublishedStore) -> None:
    words = ["gemm", "n=64", "k=64", "tile.block_m=128", "tile.block_n=128", "tile.block_k=64"]
    result = kaas("get", *words, "--strict", "--json")
    assert result.exit_code == exit_status.NOT_FOUND
    assert json.loads(result.stderr)["details"]["spec"]["tile"]["block_m"] == 128


def test_the_tile_option_overrides_the_tile_of_any_way_to_write_a_spec(store: PublishedStore) -> None:
    wanted = {"block_m": 32, "block_n": 64, "block_k": 128}
    option = "--tile=block_m=32, block_n=64,block_k=128"
    for words in (["gemm", "n=64", "k=64"], ['{"family": "gemm", "n": 64, "k": 64, "tile": null}']):
        result = kaas("get", *words, option, "--strict", "--json")
        assert json.loads(result.stderr)["details"]["spec"]["tile"] == wanted
    wrong = kaas("get", "gemm", "n=64", "k=64", "--tile", "block_m=24,block_n=64,block_k=64")
    assert wrong.exit_code == exit_status.USAGE
    assert "tile.block_m" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gemm", "n=64"], "k"),
        (["gemm", "n=64", "k=0"], "k is 0"),
        (["gemm", "n=64", "k=64", "k=65"], "given twice"),
        (["gemm", "n=64", "k"], "key=value"),
        (["gem", "n=64", "k=64"], "did you mean gemm"),
        (["{"], "not valid JSON"),
        (["gemm", "n=64", "k=64", "colour=red"], "colour"),
        (["gemm", "n=64", "k=64", "dtype_a=fp8"], "bf16"),
        (["gemm", "n=\udcff", "k=64"], "n holds half of a character"),
    ],
)
def test_a_wrong_spec_is_wrong_usage_in_one_line(store: PublishedStore, words: list[str], said: str) -> None:
    result = kaas("get", *words)
    assert result.exit_code == exit_status.USAGE
    assert said in result.stderr
    assert result.stderr.startswith("kaas: ")
    assert "Traceback" not in result.output


def test_bytes_that_are_no_text_are_wrong_usage(store: PublishedStore, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_bytes(b"family: \xff\xfe")
    for words in (["ls", "--family", "\udcff"], ["get", str(tmp_path / "spec.yaml")]):
        result = kaas(*words)
        assert result.exit_code == exit_status.USAGE
        assert result.stderr.startswith("kaas: ")
        assert "a bug" not in result.stderr


def test_without_a_daemon_the_start_command_is_said(store: PublishedStore) -> None:
    for words in (
        ["get", "gemm", "n=64", "k=64"],
        ["ls"],
        ["show", "abcdef"],
        ["explain", "gemm", "n=64", "k=64"],
    ):
        result = kaas(*words)
        assert result.exit_code == exit_status.NO_DAEMON
        assert "kaas serve --socket" in result.stderr


def test_env_is_read_from_the_store(store: PublishedStore) -> None:
    assert json.loads(kaas("env", "--json").stdout)["target"]["cube_cores"] == 28
    assert "target.cube_cores" in kaas("env").stdout


def test_families_have_names_and_schemas() -> None:
    assert {"gemm", "rmsnorm"} <= set(json.loads(kaas("families", "--json").stdout))
    assert "gemm" in kaas("families").stdout


def test_one_familys_page_says_what_its_specs_take(store: PublishedStore) -> None:
    page = kaas("families", "gemm").stdout
    assert page.startswith("# gemm")
    assert "| `layout` |" in page
    assert json.loads(kaas("families", "gemm", "--json").stdout)["properties"]["n"]
    assert "did you mean" in kaas("families", "gem").stderr


def test_doctor_names_what_is_missing_and_fails(store: PublishedStore) -> None:
    result = kaas("doctor", "--json")
    assert result.exit_code == exit_status.FAILED
    findings = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert findings["daemon"]["status"] == "fail"
    assert "kaas serve" in findings["daemon"]["advice"]
    assert findings["store"]["status"] == "ok"
    assert findings["device"]["status"] == "fail"
    assert "libascendcl" in findings["device"]["message"]


def test_doctor_says_what_to_do_without_a_store(store: PublishedStore, tmp_path: Path) -> None:
    result = kaas("doctor", "--store", str(tmp_path / "nothing"))
    assert result.exit_code == exit_status.FAILED
    assert "start the daemon once" in result.stdout


def test_an_unexpected_error_is_one_line(store: PublishedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(cli, "specs_from_words", broken)
    result = kaas("get", "gemm")
    assert result.exit_code == exit_status.INTERNAL
    assert result.stderr.splitlines()[0] == "kaas: unexpected RuntimeError: boom"


def test_an_interrupt_ends_quietly(store: PublishedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "specs_from_words", interrupted)
    result = kaas("get", "gemm")
    assert result.exit_code == exit_status.INTERRUPTED
    assert result.stderr == "kaas: interrupted\n"


@pytest.mark.parametrize(
    "cls",
    [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, KaasError)],
)
def test_every_error_class_has_a_status_above_zero(cls: type[KaasError]) -> None:
    assert 0 < exit_status.exit_status(cls("x")) < 128


def test_serve_refuses_unknown_flags(store: PublishedStore) -> None:
    result = kaas("serve", "--colour", "red")
    assert result.exit_code == exit_status.USAGE
    assert "--colour" in result.stderr


def test_the_demos_error_is_zero_for_equal_tensors_and_nan_for_nan() -> None:
    import torch

    from kaas.client.demo import relative_error

    x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    assert relative_error(x, x) == 0
    assert relative_error(x, -x) == 2
    assert not relative_error(x * float("nan"), x) < 1
