"""Signatures: keys as openssl writes them, trust lists, and what a policy lets in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kaas.cache.signatures import SignaturePolicy, read_signing_key, read_trust_list, with_signature
from kaas.proto.errors import InvalidConfig, SignatureRefused

serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
KEY, SHA = "a" * 64, "b" * 64


def write_key(path: Path, seed: int = 1) -> Path:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def test_a_key_signs_what_its_entry_in_a_trust_list_verifies(tmp_path: Path) -> None:
    key = read_signing_key(write_key(tmp_path / "key.pem"))
    (tmp_path / "trust.toml").write_text(f'[keys]\n"release 7" = "{key.trust_list_value}"\n')
    policy = SignaturePolicy.read(tmp_path / "trust.toml", required=True)
    signature = key.sign(KEY, SHA)
    assert signature == key.sign(KEY, SHA)
    assert policy.judge(KEY, SHA, signature) == "release 7"
    stranger = read_signing_key(write_key(tmp_path / "other.pem", 2))
    assert policy.judge(KEY, SHA, with_signature(stranger.sign(KEY, SHA), signature)) == "release 7"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_openssl_makes_the_keys(tmp_path: Path) -> None:
    private = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    shown = subprocess.run(
        ["openssl", "pkey", "-in", private, "-pubout"], check=True, capture_output=True, text=True
    ).stdout
    (tmp_path / "trust.toml").write_text(f'[keys]\nci = "{shown.splitlines()[1]}"\n')
    key = read_signing_key(private)
    assert SignaturePolicy.read(tmp_path / "trust.toml", required=True).judge(KEY, SHA, key.sign(KEY, SHA))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "trust_list"),
        ("[keys", "trust_list"),
        ("[keys]\n", "trust_list"),
        ('[keys]\na = "x"\n[more]\n', "trust_list"),
        ('[keys]\na = "MCowBQYDK2VwAyEA"\n', "keys.a"),
        ("[keys]\na = 7\n", "keys.a"),
        ('[keys]\na = "' + "A" * 60 + '"\n', "keys.a"),
    ],
)
def test_a_trust_list_that_is_none_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "trust.toml").write_text(text)
    with pytest.raises(InvalidConfig) as refusal:
        read_trust_list(tmp_path / "trust.toml")
    assert refusal.value.details["field"] == named
    assert refusal.value.details["legal"]


def test_a_policy_that_requires_signatures_of_nobody_is_refused() -> None:
    with pytest.raises(InvalidConfig) as refusal:
        SignaturePolicy(None, required=True)
    assert refusal.value.details["field"] == "trust_list"


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_is_no_private_key_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(content)
    with pytest.raises(InvalidConfig, match="openssl genpkey"):
        read_signing_key(tmp_path / "key.pem")


def test_a_private_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    (tmp_path / "key.pem").write_bytes(
        X25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(InvalidConfig, match="another kind"):
        read_signing_key(tmp_path / "key.pem")


@pytest.mark.parametrize("required", [False, True])
def test_unsigned_kernels_pass_only_where_no_signature_is_required(required: bool, tmp_path: Path) -> None:
    key = read_signing_key(write_key(tmp_path / "key.pem"))
    (tmp_path / "trust.toml").write_text(f'[keys]\na = "{key.trust_list_value}"\n')
    policy = SignaturePolicy.read(tmp_path / "trust.toml", required=required)
    stranger = read_signing_key(write_key(tmp_path / "other.pem", 2)).sign(KEY, SHA)
    for signatures, reason in (("", "unsigned"), (stranger, "foreign")):
        if not required:
            assert policy.judge(KEY, SHA, signatures) == ""
            continue
        with pytest.raises(SignatureRefused) as refusal:
            policy.judge(KEY, SHA, signatures)
        assert (refusal.value.details["reason"], refusal.value.details["key"]) == (reason, KEY)
