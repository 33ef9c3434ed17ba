"""Plain request: how a rank asks the daemon for a kernel without gRPC, which costs it 0.1 s to import.

On the socket beside the daemon's own (:func:`kaas.proto.locations.lease_socket`) a client writes one line of
JSON, a :class:`Want`, and reads one, a :class:`Given`. It may hang up before that: then it waits no more. One
that only shuts its sending side down is answered.
Everything else is gRPC's, bytes in the reply included.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

MAX_LINE_BYTES = 64 << 10
"""Of a request; a larger one goes by gRPC."""


class Want(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kernel is wanted; ``spec`` is its JSON, ``timeout_s`` how long the client waits for the answer."""

    want: Literal[1] = 1
    spec: msgspec.Raw
    soc_name: str = ""
    priority: Literal["rank", "user", "prewarm"] = "user"
    strict: bool = False
    timeout_s: float | None = None
    job: str = ""
    rank: str = ""


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The kernel at ``path``, which is empty when it could not be stored; or the record of an ``error``."""

    key: str = ""
    outcome: Literal["", "hit", "compiled", "joined", "fetched"] = ""
    path: str = ""
    compile_seconds: float = 0.0
    waited_seconds: float = 0.0
    error: dict[str, Any] | None = None
