"""Remote names: where a kernel lies in a remote tier. They follow from the key; nothing is ever listed.

Below the tier's own prefix, ``v1/KE/KEY.kernel`` is the artifact, byte for byte as it lies in a store, and
``v1/KE/KEY.SHA256.sig`` the signatures of one such artifact. The digest in the name keeps two nodes that
compile one kernel at the same time from giving one's bytes the other's signature.
"""

from __future__ import annotations

from kaas.cache.layout import require_key

REMOTE_FORMAT = "v1"
"""Raised when names or contents change; other versions never meet."""

MAX_SIGNATURES_BYTES = 4096


def artifact_name(key: str) -> str:
    """Of the artifact with that key."""
    return f"{REMOTE_FORMAT}/{require_key(key)[:2]}/{key}.kernel"


def signatures_name(key: str, sha256: str) -> str:
    """Of the signatures of the artifact with that key whose bytes have that digest."""
    return f"{REMOTE_FORMAT}/{require_key(key)[:2]}/{key}.{require_key(sha256)}.sig"
