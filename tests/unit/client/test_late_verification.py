"""Kernels with the store's mark: opened now, verified whole at their first use, or never launched."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from support.client_store import PublishedStore, RecordingRuntime, environment

from kaas import DaemonUnavailable, GemmSpec, StrictMiss, TargetMismatch, aget_kernel, get_kernel
from kaas.cache.artifact import mark_verified, open_marked
from kaas.client import api
from kaas.client.device import Device
from kaas.client.handle import KernelHandle
from kaas.client.plain_link import PlainReply
from kaas.proto.errors import ArtifactDamaged, StoreUnavailable

SPEC = GemmSpec(n=64, k=64)
IMAGE = b"image of "


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PublishedStore]:
    monkeypatch.setenv("KAAS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KAAS_SOCKET", str(tmp_path / "kaas.sock"))
    api.forget()
    gc.collect()  # earlier tests' exceptions may keep their kernels, which count, too
    yield PublishedStore(tmp_path / "store")
    api.forget()


def marked(store: PublishedStore, spec: GemmSpec = SPEC) -> Path:
    path = store.add(spec)
    mark_verified(path, 1.0)
    return path


def rot(path: Path) -> None:
    """Another byte in the image, behind the file system's back."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[content.index(IMAGE)] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def publish_again(store: PublishedStore, path: Path) -> None:
    """The good kernel in another file of the same name, as the daemon publishes."""
    path.unlink()
    marked(store)


def image_of(handle: KernelHandle) -> bytes:
    """What it launches, on a device that remembers it."""
    runtime = RecordingRuntime()
    handle._find_device = lambda: Device(runtime, environment())
    handle(torch.zeros(3), torch.zeros(3))
    return runtime.loaded[0]


def descriptors() -> dict[int, str]:
    """This process's open files, by number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found[int(entry.name)] = str(entry.readlink())
    return found


def held(store: PublishedStore) -> list[int]:
    """Descriptors of kernels in the store."""
    return [number for number, path in descriptors().items() if path.startswith(f"{store.root}/")]


def test_a_repaired_file_replaces_a_rotten_one_without_a_daemon(store: PublishedStore) -> None:
    path = marked(store)
    handle = get_kernel(SPEC)
    rot(path)
    publish_again(store, path)
    assert image_of(handle) == IMAGE + handle.key.encode()


def test_a_rotten_kernel_without_repair_is_not_launched_until_there_is_one(store: PublishedStore) -> None:
    path = marked(store)
    handle = get_kernel(SPEC)
    rot(path)
    with pytest.raises(DaemonUnavailable):
        image_of(handle)
    publish_again(store, path)
    assert get_kernel(SPEC) is handle
    assert image_of(handle) == IMAGE + handle.key.encode()


def test_what_strict_mode_hands_out_cannot_miss_later(store: PublishedStore) -> None:
    path = marked(store)
    handle = get_kernel(SPEC, strict=True)
    rot(path)
    path.unlink()
    assert image_of(handle) == IMAGE + handle.key.encode()


@pytest.mark.parametrize("asked_before", [False, True])
def test_strict_mode_hands_out_nothing_rotten(store: PublishedStore, asked_before: bool) -> None:
    path = marked(store)
    handle = get_kernel(SPEC) if asked_before else None
    rot(path)
    with pytest.raises(StrictMiss):
        get_kernel(SPEC, strict=True)
    with pytest.raises(StrictMiss):
        asyncio.run(aget_kernel(SPEC, strict=True))
    publish_again(store, path)
    again = get_kernel(SPEC, strict=True)
    assert handle in (None, again)
    assert image_of(again) == IMAGE + again.key.encode()


def test_a_strict_miss_says_its_hint_once(store: PublishedStore) -> None:
    with pytest.raises(StrictMiss) as caught:
        get_kernel(SPEC, strict=True)
    assert caught.value.hint
    assert str(caught.value).count("pre-warm") == 1
    assert caught.value.details["key"] == store.environment.passport(SPEC.to_record()).key()


def upgraded(store: PublishedStore) -> PublishedStore:
    toolchain = msgspec.structs.replace(store.environment.toolchain, cann_version="9.3.0")
    newer = msgspec.structs.replace(store.environment, generation=2, toolchain=toolchain)
    return PublishedStore(store.root, newer)


def test_a_rotten_kernel_is_never_replaced_by_the_one_of_a_newer_toolchain(store: PublishedStore) -> None:
    rotten = marked(store)
    handle = get_kernel(SPEC)
    rot(rotten)
    newer = marked(upgraded(store))
    with pytest.raises(
        TargetMismatch, match=r"toolchain\.cann_version 9\.2\.0, the node has 9\.3\.0"
    ) as caught:
        handle.verify()
    assert caught.value.details["field"] == "toolchain.cann_version"
    assert handle.key == rotten.stem
    with pytest.raises(TargetMismatch):
        image_of(handle)
    assert get_kernel(SPEC).key == newer.stem


def test_another_kernel_of_the_daemon_is_no_replacement(
    store: PublishedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = marked(store)
    handle = get_kernel(SPEC)
    rot(path)
    other = marked(upgraded(PublishedStore(tmp_path / "the daemon's")))
    reply = PlainReply(
        key=other.stem, outcome=2, artifact_path=str(other), compile_seconds=1.0, waited_seconds=1.0
    )
    assert api._client is not None
    monkeypatch.setattr(api._client, "_link", SimpleNamespace(get_kernel=lambda *_, **__: reply))
    with pytest.raises(TargetMismatch, match=r"toolchain\.cann_version 9\.2\.0"):
        handle.verify()
    assert handle.key == path.stem


def test_a_kernel_whose_descriptor_was_closed_is_read_by_its_name(store: PublishedStore) -> None:
    marked(store)
    handle = get_kernel(SPEC)
    number = held(store)[0]
    os.closerange(number, number + 1)
    assert image_of(handle) == IMAGE + handle.key.encode()


@pytest.mark.parametrize("use", [True, False])
def test_a_descriptor_that_became_another_files_is_neither_read_nor_closed(
    store: PublishedStore, tmp_path: Path, use: bool
) -> None:
    path = marked(store)
    artifact = open_marked(str(path), path.stem)
    number = held(store)[0]
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"not a kernel")
    other = os.open(theirs, os.O_RDONLY)
    os.dup2(other, number)
    if use:
        assert bytes(artifact.image) == IMAGE + artifact.key.encode()
    artifact.close()
    del artifact
    assert os.pread(number, 100, 0) == b"not a kernel"
    os.close(number)
    os.close(other)


def test_a_kernel_whose_descriptor_and_name_are_gone_says_so(store: PublishedStore) -> None:
    path = marked(store)
    artifact = open_marked(str(path), path.stem)
    number = held(store)[0]
    os.close(number)
    path.unlink()
    with pytest.raises(StoreUnavailable):
        artifact.take()


@pytest.fixture
def descriptor_limit() -> Iterator[Any]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_unread_kernels_hold_a_quarter_of_the_descriptors_at_most(
    store: PublishedStore, descriptor_limit: Any
) -> None:
    specs = [GemmSpec(n=16 * n, k=64) for n in range(1, 150)]
    paths = [marked(store, spec) for spec in specs]
    descriptor_limit(1024)
    handles = [get_kernel(spec) for spec in specs]
    assert len(held(store)) == 128
    for path in paths:
        path.unlink()
    assert all(image_of(handle) == IMAGE + handle.key.encode() for handle in handles)
    assert held(store) == []


def test_the_limit_on_descriptors_is_read_when_it_matters(
    store: PublishedStore, descriptor_limit: Any
) -> None:
    specs = [GemmSpec(n=16 * n, k=64) for n in range(1, 100)]
    for spec in specs:
        marked(store, spec)
    descriptor_limit(256)
    handles = [get_kernel(spec) for spec in specs]
    assert len(held(store)) == 64
    assert all(not handle.is_verified for handle in handles)


def test_unread_kernels_make_room_when_the_descriptors_are_used_up(
    store: PublishedStore, descriptor_limit: Any
) -> None:
    specs = [GemmSpec(n=16 * n, k=64) for n in range(1, 9)]
    for spec in specs:
        marked(store, spec)
    handles = [get_kernel(spec) for spec in specs[:-1]]
    descriptor_limit(1 + max(descriptors()))
    filled = []
    with suppress(OSError):
        while True:
            filled.append(os.open(os.devnull, os.O_RDONLY))
    try:
        handles.append(get_kernel(specs[-1]))
        with pytest.raises(DaemonUnavailable, match="there is no socket"):
            get_kernel(GemmSpec(n=4096, k=64))
    finally:
        for number in filled:
            os.close(number)
    assert all(image_of(handle) == IMAGE + handle.key.encode() for handle in handles)


class Interruption:
    """A signal whose handler uses the artifact, at one line of what reads and verifies it."""

    def __init__(self, artifact: Any, at: int) -> None:
        self.artifact, self.at = artifact, at
        self.lines = 0
        self.image = b""
        self.opened: list[int] = []

    def handle(self, *_: object) -> None:
        try:
            self.image = bytes(self.artifact.image)
        except ArtifactDamaged:
            self.image = b"damaged"
        # Takes whatever number came free, so that closing it twice would show.
        self.opened += [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith(("artifact.py", "held_file.py")):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                signal.raise_signal(signal.SIGUSR1)
        return self.trace


@pytest.mark.parametrize("is_rotten", [False, True])
def test_a_signal_handler_may_use_a_kernel_while_it_is_read(store: PublishedStore, is_rotten: bool) -> None:
    path = marked(store)
    expected = b"damaged" if is_rotten else IMAGE + path.stem.encode()
    traced_before, at, reached = sys.gettrace(), 0, True
    old = signal.getsignal(signal.SIGUSR1)
    try:
        while reached:
            at += 1
            artifact = open_marked(str(path), path.stem)
            if is_rotten and at == 1:
                rot(path)
            interruption = Interruption(artifact, at)
            signal.signal(signal.SIGUSR1, interruption.handle)
            sys.settrace(interruption.trace)
            try:
                image = bytes(artifact.image)
            except ArtifactDamaged:
                image = b"damaged"
            finally:
                sys.settrace(traced_before)
            reached = interruption.lines >= at
            assert image == expected
            assert interruption.image == (expected if reached else b"")
            artifact.close()
            for number in interruption.opened:
                os.close(number)  # fails if somebody closed it
            del artifact, interruption
            assert held(store) == []
    finally:
        sys.settrace(traced_before)
        signal.signal(signal.SIGUSR1, old)
    assert at > 40


def test_threads_that_use_one_unread_kernel_get_the_same(store: PublishedStore) -> None:
    path = marked(store)
    for _ in range(50):
        artifact = open_marked(str(path), path.stem)
        images: list[bytes] = []
        threads = [
            threading.Thread(target=lambda a=artifact, i=images: i.append(bytes(a.image))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert images == [IMAGE + path.stem.encode()] * 4
