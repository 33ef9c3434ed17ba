"""A bundle goes from one daemon's store into another's while that serves, under that daemon's own policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.staged_node import StagedNode
from typer.testing import CliRunner

from kaas.client import cli, exit_status

pytest.importorskip("cryptography")


def kaas(*words: str | Path) -> tuple[int, Any]:
    result = CliRunner().invoke(cli.app, [*(str(word) for word in words), "--json"])
    return result.exit_code, json.loads(result.stdout or result.stderr)


def test_kernels_of_another_node_are_hits_once_a_trusted_key_has_signed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    monkeypatch.delenv("KAAS_TRUST_LIST", raising=False)
    monkeypatch.delenv("KAAS_REQUIRE_SIGNATURE", raising=False)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(pem)
    plain, signed = tmp_path / "plain.tar", tmp_path / "signed.tar"
    with StagedNode(tmp_path / "builder") as builder:
        keys = sorted(reply.key for reply in builder.ask(1, 2))
        assert kaas("bundle", "create", plain, "--all", "--store", builder.daemon.store)[0] == 0
    _, facts = kaas("bundle", "sign", plain, signed, "--key", tmp_path / "key.pem")
    (tmp_path / "trust.toml").write_text(f'[keys]\nrelease = "{facts["trust_list_value"]}"\n')

    demands = {"trust_list": str(tmp_path / "trust.toml"), "require_signature": "true"}
    with StagedNode(tmp_path / "another" / "place", **demands) as node:
        place = ("--store", node.daemon.store, "--socket", node.daemon.socket)
        status, error = kaas("bundle", "import", plain, *place)
        assert (status, error["code"]) == (exit_status.FAILED, "signature_refused")
        assert list(node.states()) == []
        status, done = kaas("bundle", "import", signed, *place)
        assert (status, done["way"], done["added"], done["here"]) == (0, "daemon", 2, 2)
        assert sorted(state.key for state in node.states()) == keys
        assert [reply.outcome for reply in node.ask(1, 2)] == [1, 1]
        assert list(node.compiler_starts()) == []
        assert list((node.daemon.store / "staging").iterdir()) == []
        assert kaas("bundle", "import", signed, *place)[1]["present"] == 2
        wrong = kaas(
            "bundle", "import", signed, "--store", tmp_path / "builder" / "node" / "store", *place[2:]
        )
        assert (wrong[0], wrong[1]["code"]) == (exit_status.NOT_FOUND, "kernel_not_found")
