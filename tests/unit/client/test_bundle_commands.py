"""kaas bundle: from one store into another one, in another place, without a daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.client_store import PublishedStore
from typer.testing import CliRunner, Result

from kaas.client import cli, exit_status
from kaas.kernel_library.families.gemm import GemmSpec

pytest.importorskip("cryptography")

SPECS = [GemmSpec(n=n, k=64) for n in (64, 128, 256)]
MANIFEST = "- {family: gemm, n: 64, k: 64}\n- {family: gemm, n: 128, k: 64}\n"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PublishedStore:
    monkeypatch.setenv("KAAS_STORE", str(tmp_path / "builder" / "store"))
    monkeypatch.setenv("KAAS_SOCKET", str(tmp_path / "kaas.sock"))
    for name in ("KAAS_TRUST_LIST", "KAAS_REQUIRE_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("kaas.client.socket_probe.PATIENCE_S", 0.0)
    monkeypatch.setattr("kaas.client.daemon_link.PATIENCE_S", 0.0)
    store = PublishedStore(tmp_path / "builder" / "store")
    for spec in SPECS:
        store.add(spec)
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    return store


def kaas(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def answer(*words: str | Path) -> Any:
    result = kaas(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*words: str | Path) -> tuple[int, Any]:
    result = kaas(*words, "--json")
    assert "Traceback" not in result.output
    return result.exit_code, json.loads(result.stderr)


def test_kernels_of_one_store_are_hits_in_another_one_elsewhere(
    store: PublishedStore, tmp_path: Path
) -> None:
    bundle, elsewhere = tmp_path / "all.kaas.tar", tmp_path / "quite" / "another" / "place"
    assert answer("bundle", "create", bundle, "--all")["kernels"] == 3
    PublishedStore(elsewhere)
    done = answer("bundle", "import", bundle, "--store", elsewhere)
    assert (done["way"], done["added"], done["present"], done["here"]) == ("offline", 3, 0, 3)
    for spec in SPECS:
        found = answer("get", "gemm", f"n={spec.n}", f"k={spec.k}", "--store", elsewhere, "--strict")
        assert (found["outcome"], found["from"]) == ("hit", "store")
        assert Path(found["path"]).is_relative_to(elsewhere)
        assert Path(found["path"]).read_bytes() == store.layout.artifact_path(found["key"]).read_bytes()
    again = answer("bundle", "import", bundle, "--store", elsewhere)
    assert (again["added"], again["present"]) == (0, 3)


def test_two_bundles_of_a_store_have_the_same_bytes_and_so_has_that_of_the_store_it_went_to(
    store: PublishedStore, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        answer("bundle", "create", tmp_path / name, "--all")
    answer("bundle", "import", tmp_path / "one", "--store", tmp_path / "other")
    answer("bundle", "create", tmp_path / "three", "--all", "--store", tmp_path / "other")
    assert len({(tmp_path / name).read_bytes() for name in ("one", "two", "three")}) == 1


def test_a_manifest_selects_its_kernels_and_a_missing_one_is_named(
    store: PublishedStore, tmp_path: Path
) -> None:
    manifest, bundle = tmp_path / "manifest.yaml", tmp_path / "bundle"
    assert answer("bundle", "create", bundle, "--manifest", manifest)["kernels"] == 2
    bundle.unlink()
    manifest.write_text(MANIFEST + "- {family: gemm, n: 512, k: 64}\n")
    status, error = refusal("bundle", "create", bundle, "--manifest", manifest)
    assert (status, error["code"]) == (exit_status.NOT_FOUND, "kernel_not_found")
    assert "line 3" in error["message"]
    assert not bundle.exists()
    made = answer("bundle", "create", bundle, "--manifest", manifest, "--allow-missing")
    assert (made["kernels"], len(made["missing"])) == (2, 1)


def test_keys_select_kernels_by_their_first_digits(store: PublishedStore, tmp_path: Path) -> None:
    key = next(path.stem for path in store.layout.artifacts.rglob("*.kernel"))
    answer("bundle", "create", tmp_path / "bundle", key[:10])
    listing = answer("bundle", "inspect", tmp_path / "bundle")
    assert [one["key"] for one in listing["kernels"]] == [key]
    status, error = refusal("bundle", "create", tmp_path / "none", "0123456789")
    assert (status, error["code"]) == (exit_status.NOT_FOUND, "kernel_not_found")


@pytest.mark.parametrize("words", [[], ["--all", "abcdef"], ["--all", "--manifest", "x"], ["xyz"]])
def test_what_goes_into_a_bundle_must_be_clear(
    words: list[str], store: PublishedStore, tmp_path: Path
) -> None:
    status, error = refusal("bundle", "create", tmp_path / "bundle", *words)
    assert (status, error["code"]) == (exit_status.USAGE, "invalid_request")
    assert error["details"]["legal"]


def test_a_damaged_kernel_does_not_get_into_a_bundle(store: PublishedStore, tmp_path: Path) -> None:
    path = next(store.layout.artifacts.rglob("*.kernel"))
    path.write_bytes(path.read_bytes()[:-1])
    status, error = refusal("bundle", "create", tmp_path / "bundle", "--all")
    assert (status, error["details"]["keys"]) == (exit_status.NOT_FOUND, [path.stem])


def test_signed_bundles_are_taken_and_unsigned_ones_refused_where_a_signature_is_required(
    store: PublishedStore, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = tmp_path / "key.pem"
    key.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    plain, signed, trust = tmp_path / "plain", tmp_path / "signed", tmp_path / "trust.toml"
    answer("bundle", "create", plain, "--all")
    value = answer("bundle", "sign", plain, signed, "--key", key)["trust_list_value"]
    trust.write_text(f'[keys]\nrelease = "{value}"\n')
    demands = ("--trust-list", trust, "--require-signature")
    elsewhere = tmp_path / "elsewhere"
    status, error = refusal("bundle", "import", plain, "--store", elsewhere, *demands)
    assert (status, error["code"]) == (exit_status.FAILED, "signature_refused")
    assert error["details"]["reason"] == "unsigned"
    assert not elsewhere.exists()
    assert answer("bundle", "verify", signed, *demands)["signed_by"] == {"release": 3}
    done = answer("bundle", "import", signed, "--store", elsewhere, *demands)
    assert (done["added"], done["signed"]) == (3, 3)
    direct = tmp_path / "direct"
    answer("bundle", "create", direct, "--all", "--sign", key)
    assert direct.read_bytes() == signed.read_bytes()


def test_a_refused_bundle_is_one_plain_line(store: PublishedStore, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(b"PK\x03\x04" + bytes(2000))
    for command in ("inspect", "verify", "import"):
        result = kaas("bundle", command, tmp_path / "bundle")
        assert result.exit_code == exit_status.FAILED
        assert result.stderr == "kaas: the bundle is refused: it is compressed (zip); a bundle never is\n"


def test_a_store_of_a_running_daemon_elsewhere_is_not_written_to(
    store: PublishedStore, tmp_path: Path
) -> None:
    from kaas.cache.store import Store

    answer("bundle", "create", tmp_path / "bundle", "--all")
    with Store.open(tmp_path / "owned") as owned:
        status, error = refusal("bundle", "import", tmp_path / "bundle", "--store", tmp_path / "owned")
        assert (status, error["code"]) == (exit_status.NODE_TROUBLE, "store_unavailable")
        assert list(owned.keys()) == []


@pytest.mark.parametrize("place", ["bundle", "host/UPPER", "host:99999x/r", "http://h/r", "h/r@sha256:12"])
def test_what_is_no_place_in_a_registry_is_refused(place: str, store: PublishedStore, tmp_path: Path) -> None:
    status, error = refusal("bundle", "pull", place, tmp_path / "bundle")
    assert (status, error["details"]["field"]) == (exit_status.USAGE, "reference")
