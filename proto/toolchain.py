"""Toolchain identity: which compiler produced, or would produce, a binary."""

from __future__ import annotations

from typing import Literal

import msgspec

ToolchainKind = Literal["cann", "twin"]


class Toolchain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content identity of a toolkit; no path and no time, so that equal toolkits are equal anywhere.

    Digests are SHA-256 (hex): of ``bisheng``, of ``ld.lld``, and of the device header tree.
    ``compiler_version`` is the first line of ``bisheng --version``.
    """

    kind: ToolchainKind
    cann_version: str
    compiler_version: str
    bisheng_digest: str
    linker_digest: str
    headers_digest: str
    host_arch: str
