"""Foreign artifact: one that came from another node, over whatever way; everything that is checked of it.

The key proves what a kernel was asked to be, its digests that no byte changed since it was packed. That its
binary is what a compiler makes of that spec, only the signature of somebody trusted says.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from kaas.cache.artifact import Artifact
from kaas.cache.layout import require_key
from kaas.cache.signatures import SignaturePolicy
from kaas.proto.errors import ArtifactDamaged
from kaas.proto.passport import SCHEMA_VERSION, Passport


class Verified(NamedTuple):
    """A foreign artifact that may be published; ``signer`` names the trusted key that signed it, if any."""

    passport: Passport
    created_unix: float
    compile_seconds: float
    signer: str


def verify_foreign(
    encoded: bytes,
    *,
    key: str,
    signatures: str = "",
    policy: SignaturePolicy | None = None,
    origin: str = "artifact",
) -> Verified:
    """Check every byte of an artifact, that it is the kernel ``key``, its texts, and its signature.

    Raises :class:`ArtifactDamaged` naming the part, or :class:`SignatureRefused`.
    """
    require_key(key)
    with Artifact(encoded, expected_key=key, origin=origin) as artifact:
        passport = artifact.passport
        if passport.schema_version != SCHEMA_VERSION:
            raise ArtifactDamaged(
                f"{origin}: passport: schema {passport.schema_version} is not {SCHEMA_VERSION}",
                part="passport",
                reason="another schema",
                path=origin,
            )
        # Stored compressed, and unpacked here within the limits of their parts.
        _ = artifact.source, artifact.log
        created_unix, compile_seconds = artifact.created_unix, artifact.compile_seconds
    signer = (policy or SignaturePolicy()).judge(key, hashlib.sha256(encoded).hexdigest(), signatures)
    return Verified(passport, created_unix, compile_seconds, signer)


def staged_name(key: str) -> str:
    """How the name of a foreign artifact begins that waits in a store's staging directory."""
    return f"import-{require_key(key)}"
