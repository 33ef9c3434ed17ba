"""KeySchedule: kernel keys of many specs in one environment, the constant parts hashed once.

A passport's canonical JSON is the spec's between two texts that only depend on environment, target and
family. Hashing them anew for each key would cost more than opening the artifact.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kaas.proto.canonical import canonical_json
from kaas.proto.passport import KernelKey, Passport

if TYPE_CHECKING:
    from kaas.kernel_library.spec import KernelSpec
    from kaas.proto.environment import Environment
    from kaas.proto.target import Target


class KeySchedule:
    """Computes exactly ``environment.passport(spec, target).key()``, faster."""

    def __init__(self, environment: Environment, target: Target) -> None:
        self._environment = environment
        self._target = target
        self._families: dict[str, tuple[hashlib._Hash, bytes]] = {}

    def key(self, spec: KernelSpec) -> KernelKey:
        """The key of ``spec``. Raises :class:`UnknownFamily` when the node has no such family."""
        family = spec.family
        parts = self._families.get(family)
        if parts is None:
            parts = self._families[family] = self._constant_parts(family)
        digest = parts[0].copy()
        digest.update(spec.canonical())
        digest.update(parts[1])
        return KernelKey(digest.hexdigest())

    def _constant_parts(self, family: str) -> tuple[hashlib._Hash, bytes]:
        passport = self._environment.passport({"family": family}, self._target)
        names = sorted(Passport.__struct_fields__)
        fields = {
            name: b'"%s":%s' % (name.encode(), canonical_json(getattr(passport, name))) for name in names
        }
        at = names.index("spec")
        before = b"{" + b"".join(fields[name] + b"," for name in names[:at]) + b'"spec":'
        after = b"".join(b"," + fields[name] for name in names[at + 1 :]) + b"}"
        return hashlib.sha256(before), after
