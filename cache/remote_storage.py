"""Remote storage: objects of one remote tier, through OpenDAL, which is imported only when a tier is opened.

Nothing here waits with a limit of its own, or judges what it reads: callers do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kaas.cache.remote_settings import FIELD, RemoteTierSettings, resolved_options, secrets_of
from kaas.proto.errors import InvalidConfig

if TYPE_CHECKING:
    from opendal import AsyncOperator

CHUNK_BYTES = 1 << 20
_HIDDEN = "***"
_opening = threading.Lock()


class RemoteTrouble(Exception):
    """A remote tier failed a call; the text is one line without secrets."""


class ObjectTooLarge(Exception):
    """An object is larger than it may be; it was not read to its end."""


class RemoteStorage:
    """Reads and writes whole objects by name."""

    def __init__(self, operator: AsyncOperator, hidden: list[str]) -> None:
        self._operator = operator
        self._hidden = hidden

    @classmethod
    def open(cls, tier: RemoteTierSettings, environ: Mapping[str, str] | None = None) -> RemoteStorage:
        """Prepare a tier's service; nothing is asked of it yet. Raises :class:`InvalidConfig`."""
        if find_spec("opendal") is None:
            raise InvalidConfig(
                "remote tiers need the package opendal, which is not installed",
                hint="pip install 'ascend-kaas[remote]'",
                field=FIELD,
            )
        options = resolved_options(tier, os.environ if environ is None else environ)
        hidden = secrets_of(tier, options)
        with _opening:
            import opendal
            import opendal.layers

        if tier.scheme == "fs":
            # Its writes appear whole, like those of every other service.
            root = urlsplit(tier.uri).path.rstrip("/")
            options = {"atomic_write_dir": f"{root}/.writing", **options}
        try:
            # One bad answer is no reason to lose a kernel; the deadline of who calls covers the retries.
            patient = opendal.layers.RetryLayer(max_times=2, min_delay=0.05, max_delay=0.5, jitter=True)
            operator = opendal.AsyncOperator.from_uri(tier.uri, **options).layer(patient)
        except Exception as error:  # OpenDAL's own classes have no common base
            problem = _line(error, hidden)
            raise InvalidConfig(
                f"{FIELD}: the tier {tier.name!r} cannot be used: {problem}",
                field=f"{FIELD}.{tier.name}",
                legal="a service of OpenDAL with the options that it needs",
            ) from None
        return cls(operator, hidden)

    async def size(self, name: str) -> int | None:
        """Bytes of an object; ``None`` when there is none. Raises :class:`RemoteTrouble`."""
        try:
            return int((await self._operator.stat(name)).content_length)
        except Exception as error:
            if _is_absent(error):
                return None
            raise self._trouble(error) from None

    async def read(self, name: str, limit: int) -> bytes | None:
        """An object of at most ``limit`` bytes; ``None`` when there is none.

        Raises :class:`ObjectTooLarge` or :class:`RemoteTrouble`.
        """
        size = await self.size(name)
        if size is None:
            return None
        if size > limit:
            raise ObjectTooLarge
        found = bytearray()
        try:
            # In chunks: a server that sends more than it said it would is left as soon as that shows.
            file = await self._operator.open(name, "rb")
            try:
                while chunk := await file.read(CHUNK_BYTES):
                    found += chunk
                    if len(found) > limit:
                        raise ObjectTooLarge
            finally:
                await file.close()
        except ObjectTooLarge:
            raise
        except Exception as error:
            if _is_absent(error):
                return None
            raise self._trouble(error) from None
        return bytes(found)

    async def write(self, name: str, content: bytes) -> None:
        """Write an object, in place of one that is there. Raises :class:`RemoteTrouble`."""
        try:
            await self._operator.write(name, content)
        except Exception as error:
            raise self._trouble(error) from None

    def _trouble(self, error: Exception) -> RemoteTrouble:
        return RemoteTrouble(_line(error, self._hidden))


def _is_absent(error: Exception) -> bool:
    import opendal

    # An opened file's errors are all OSErrors, told apart by their text alone.
    return isinstance(error, opendal.exceptions.NotFound) or (
        isinstance(error, OSError) and str(error).startswith("NotFound")
    )


def _line(error: Exception, hidden: list[str]) -> str:
    """The first line of an error, and its cause if it gives one; never its context, nor a secret."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    if "Source:" in lines[:-1]:
        said += f": {lines[lines.index('Source:') + 1]}"
    for secret in hidden:
        said = said.replace(secret, _HIDDEN)
    return said[:300]
