"""Signatures: Ed25519 over one artifact's key and SHA-256, and the list of public keys that a site trusts.

A signature belongs to an artifact, not to the bundle or the place that it comes from: it survives both, and
whoever publishes a foreign artifact can check it alone. Which artifacts a bundle leaves out is not signed and
need not be, since a missing kernel is compiled.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaas.proto.errors import InvalidConfig, SignatureRefused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAX_SIGNATURES = 8
"""Of one artifact."""

MAX_TRUST_LIST_BYTES = 1 << 20

_SIGNATURE = re.compile(r"([0-9a-f]{16}):([A-Za-z0-9+/]{86}==)")
_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""What precedes the 32 bytes of an Ed25519 public key in its SubjectPublicKeyInfo (RFC 8410)."""

_KEY_LEGAL = (
    'name = "..." with the base64 line that `openssl pkey -pubout` prints for an Ed25519 key (60 characters)'
)


def statement(key: str, sha256: str) -> bytes:
    """What is signed: that the artifact with this digest is the kernel ``key``."""
    return f"kaas kernel, signature 1\n{key}\n{sha256}\n".encode()


def key_id(public: bytes) -> str:
    """A short name of a raw public key: 16 hex digits of its SHA-256."""
    return hashlib.sha256(public).hexdigest()[:16]


class SigningKey:
    """A private key that signs artifacts."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._private = private
        self.public: bytes = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = key_id(self.public)

    @property
    def trust_list_value(self) -> str:
        """What a trust list holds for this key."""
        return base64.b64encode(_DER_PREFIX + self.public).decode()

    def sign(self, key: str, sha256: str) -> str:
        """One signature as text; equal input gives equal text."""
        return f"{self.id}:{base64.b64encode(self._private.sign(statement(key, sha256))).decode()}"


def read_signing_key(path: Path) -> SigningKey:
    """An unencrypted Ed25519 private key in PEM, as ``openssl genpkey -algorithm ed25519`` writes it.

    Raises :class:`InvalidConfig`.
    """
    _require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    legal = "an unencrypted PEM file of `openssl genpkey -algorithm ed25519`"
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise _invalid("sign", path, f"cannot be read: {error.strerror}", legal) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _invalid("sign", path, "is no private key that can be used", legal) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise _invalid("sign", path, "is a key of another kind", legal)
    return SigningKey(private)


class TrustList:
    """Public keys that a site trusts, by name."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self.names = {key_id(public): name for name, public in keys.items()}
        self._public = {key_id(public): public for public in keys.values()}

    def verifies(self, signer: str, signature: bytes, signed: bytes) -> bool:
        """Whether ``signature`` over ``signed`` is that of the trusted key with the id ``signer``."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self._public[signer]).verify(signature, signed)
        except InvalidSignature:
            return False
        return True


def read_trust_list(path: Path) -> TrustList:
    """The keys of a TOML file: a table ``[keys]`` of names and public keys.

    Raises :class:`InvalidConfig` naming the key at fault.
    """
    _require_cryptography()
    try:
        content = path.read_bytes()
        if len(content) > MAX_TRUST_LIST_BYTES:
            raise _invalid("trust_list", path, "is too large", f"at most {MAX_TRUST_LIST_BYTES} bytes")
        record: dict[str, Any] = tomllib.loads(content.decode())
    except OSError as error:
        raise _invalid("trust_list", path, f"cannot be read: {error.strerror}", "a TOML file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _invalid("trust_list", path, f"is not TOML: {error}", "a TOML file") from None
    keys = record.get("keys")
    if set(record) != {"keys"} or not isinstance(keys, dict) or not keys:
        raise _invalid("trust_list", path, "has no table of keys alone", f"[keys] and below it {_KEY_LEGAL}")
    return TrustList({name: _public_key(path, name, value) for name, value in keys.items()})


class SignaturePolicy:
    """What a site demands of foreign artifacts."""

    def __init__(self, trust: TrustList | None = None, *, required: bool = False) -> None:
        if required and trust is None:
            raise InvalidConfig(
                "signatures are required, but no trust list says whose",
                field="trust_list",
                legal="a TOML file with a table [keys]",
            )
        self.trust = trust
        self.required = required

    @classmethod
    def read(cls, trust_list: str | Path, *, required: bool) -> SignaturePolicy:
        """The policy of a trust list's path, which may be empty. Raises :class:`InvalidConfig`."""
        trust = read_trust_list(Path(trust_list)) if str(trust_list) not in ("", ".") else None
        return cls(trust, required=required)

    def judge(self, key: str, sha256: str, signatures: str) -> str:
        """The name of the trusted signer of an artifact, or nothing if none is needed.

        ``signatures`` is what :meth:`SigningKey.sign` gave, comma between several. One that claims a trusted
        key and is not its, is refused whatever the policy. Raises :class:`SignatureRefused`, its reason being
        ``malformed``, ``altered``, ``unsigned`` or ``foreign``.
        """
        claims = parse_signatures(key, signatures)
        if self.trust is None:
            return ""
        signer = ""
        for claimed, signature in claims.items():
            if claimed not in self.trust.names:
                continue
            if not self.trust.verifies(claimed, signature, statement(key, sha256)):
                name = self.trust.names[claimed]
                raise _refused(key, "altered", f"its signature is not what {name!r} signs for these bytes")
            signer = signer or self.trust.names[claimed]
        if self.required and not signer:
            if not claims:
                raise _refused(key, "unsigned", "it has no signature, and one is required")
            raise _refused(key, "foreign", f"it is signed by {', '.join(claims)}, who is not trusted")
        return signer


def parse_signatures(key: str, text: str) -> dict[str, bytes]:
    """Signatures by the id of their key. Raises :class:`SignatureRefused` (``malformed``)."""
    if not text:
        return {}
    found: dict[str, bytes] = {}
    parts = text.split(",", MAX_SIGNATURES)
    if len(parts) > MAX_SIGNATURES:
        raise _refused(key, "malformed", f"it has more than {MAX_SIGNATURES} signatures")
    for part in parts:
        match = _SIGNATURE.fullmatch(part)
        if match is None or match.group(1) in found:
            raise _refused(key, "malformed", "its signatures cannot be read")
        found[match.group(1)] = base64.b64decode(match.group(2))
    return found


def with_signature(signatures: str, added: str) -> str:
    """``signatures`` with one more, in place of an older one of the same key; sorted."""
    signer = added.partition(":")[0]
    kept = [one for one in signatures.split(",") if one and one.partition(":")[0] != signer]
    return ",".join(sorted([*kept, added]))


def _public_key(path: Path, name: str, value: object) -> bytes:
    try:
        der = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        der = b""
    if len(der) != len(_DER_PREFIX) + 32 or not der.startswith(_DER_PREFIX):
        raise _invalid(f"keys.{name}", path, f"the key {name!r} is no Ed25519 public key", _KEY_LEGAL)
    return der[len(_DER_PREFIX) :]


def _require_cryptography() -> None:
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise InvalidConfig(
            "signatures need the package cryptography, which is not installed",
            hint="pip install 'ascend-kaas[bundles]'",
            field="trust_list",
        )


def _invalid(field: str, path: Path, problem: str, legal: str) -> InvalidConfig:
    return InvalidConfig(f"{path}: {problem}; legal: {legal}", field=field, source=str(path), legal=legal)


def _refused(key: str, reason: str, problem: str) -> SignatureRefused:
    return SignatureRefused(f"kernel {key[:12]}: {problem}", key=key, reason=reason)
