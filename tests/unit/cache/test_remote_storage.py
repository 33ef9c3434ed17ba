"""Remote storage through OpenDAL, on a shared directory and against a service that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("opendal")

from kaas.cache.remote_settings import RemoteTierSettings
from kaas.cache.remote_storage import ObjectTooLarge, RemoteStorage, RemoteTrouble
from kaas.proto.errors import InvalidConfig

pytestmark = pytest.mark.asyncio
NAME = "v1/ab/kernel"


def shared(folder: Path) -> RemoteStorage:
    return RemoteStorage.open(RemoteTierSettings(name="shared", uri=f"fs://{folder}"))


async def test_objects_are_written_whole_and_read_back(tmp_path: Path) -> None:
    one, other = shared(tmp_path), shared(tmp_path)
    assert await one.size(NAME) is None
    assert await one.read(NAME, 100) is None
    await one.write(NAME, b"kernel")
    assert (await other.size(NAME), await other.read(NAME, 6)) == (6, b"kernel")
    await other.write(NAME, b"another")
    assert await one.read(NAME, 100) == b"another"
    assert not [path for path in (tmp_path / ".writing").rglob("*") if path.is_file()]


async def test_an_object_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    storage = shared(tmp_path)
    await storage.write(NAME, bytes(101))
    with pytest.raises(ObjectTooLarge):
        await storage.read(NAME, 100)


async def test_trouble_is_one_line_without_secrets() -> None:
    tier = RemoteTierSettings(
        name="gone",
        uri="redis://127.0.0.1:1",
        options={"endpoint": "redis://127.0.0.1:1", "password": "env:P"},
    )
    storage = RemoteStorage.open(tier, {"P": "hunter2hunter2"})
    with pytest.raises(RemoteTrouble) as trouble:
        await storage.read(NAME, 100)
    assert "\n" not in str(trouble.value)
    assert "hunter2hunter2" not in str(trouble.value)


async def test_a_service_that_nobody_knows_is_a_fault_of_the_configuration() -> None:
    with pytest.raises(InvalidConfig) as fault:
        RemoteStorage.open(RemoteTierSettings(name="odd", uri="gopher://host/path"))
    assert fault.value.details["field"] == "remote_tiers.odd"
