"""A remote tier in this process: objects by name, and troubles on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kaas.cache.remote_settings import RemoteTierSettings
from kaas.cache.remote_storage import ObjectTooLarge, RemoteStorage, RemoteTrouble


class RemoteObjects(RemoteStorage):
    """``trouble``: nothing, ``hangs`` (no call ever ends) or the text of an error."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.trouble = ""
        self.calls: list[tuple[str, str]] = []

    def opened(self, _: RemoteTierSettings, __: Mapping[str, str] | None) -> RemoteStorage:
        """As :meth:`RemoteStorage.open`."""
        return self

    async def size(self, name: str) -> int | None:
        await self._call("size", name)
        return len(self.objects[name]) if name in self.objects else None

    async def read(self, name: str, limit: int) -> bytes | None:
        await self._call("read", name)
        content = self.objects.get(name)
        if content is not None and len(content) > limit:
            raise ObjectTooLarge
        return content

    async def write(self, name: str, content: bytes) -> None:
        await self._call("write", name)
        self.objects[name] = content

    async def _call(self, what: str, name: str) -> None:
        self.calls.append((what, name))
        if self.trouble == "hangs":
            await asyncio.Event().wait()
        if self.trouble:
            raise RemoteTrouble(self.trouble)
