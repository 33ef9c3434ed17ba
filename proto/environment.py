"""Environment: what the daemon publishes so that a client can compute keys without asking.

Published atomically as ``environment.json`` in the store. ``locality`` holds the node's own paths and is
never part of a key; everything else is exactly what a passport takes besides the spec.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kaas.proto.errors import UnknownFamily
from kaas.proto.passport import SCHEMA_VERSION, Generator, Passport
from kaas.proto.target import Target
from kaas.proto.toolchain import Toolchain


class Locality(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Paths on this node: the ACL runtime that launches, and the daemon's socket."""

    acl_library: str
    toolkit_home: str
    socket: str


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything besides the spec that decides a kernel's key on this node.

    ``generation`` grows whenever the contents change, so that a client can tell a stale copy.
    ``family_digests`` maps a family name to the digest of its sources.
    """

    schema_version: int
    generation: int
    kaas_version: str
    target: Target
    target_source: str
    toolchain: Toolchain
    tilelang_version: str
    tilelang_native_digest: str
    templates_digest: str
    lowering_digest: str
    family_digests: dict[str, str]
    options: tuple[str, ...]
    locality: Locality

    def passport(self, spec: dict[str, Any], target: Target | None = None) -> Passport:
        """The passport of ``spec`` (its plain canonical form) here, or for another ``target``.

        Raises :class:`UnknownFamily` when this node has no such family.
        """
        family = str(spec.get("family"))
        digest = self.family_digests.get(family)
        if digest is None:
            raise UnknownFamily(
                f"this node's daemon knows no kernel family {family!r}",
                hint="restart the daemon if the family was installed after it had started",
                field="family",
                legal=sorted(self.family_digests),
            )
        return Passport(
            schema_version=SCHEMA_VERSION,
            spec=spec,
            target=target or self.target,
            toolchain=self.toolchain,
            generator=Generator(
                tilelang_version=self.tilelang_version,
                tilelang_native_digest=self.tilelang_native_digest,
                templates_digest=self.templates_digest,
                lowering_digest=self.lowering_digest,
                family_digest=digest,
            ),
            options=self.options,
        )
