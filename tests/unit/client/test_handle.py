"""Handles: what a call does with the device, and which devices a kernel refuses."""

from __future__ import annotations

import os
import struct
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.client_store import COPY_LAUNCH, PublishedStore, RecordingRuntime

from kaas import GemmSpec, InvalidArgument, TargetMismatch
from kaas.cache.artifact import encode_artifact, open_artifact
from kaas.client.device import Device
from kaas.client.handle import KernelHandle

SPEC = GemmSpec(n=64, k=64)


def handle_on(
    tmp_path: Path, runtime: Any, soc_name: str | None = None, cann_version: str | None = None
) -> KernelHandle:
    store = PublishedStore(tmp_path / "store")
    artifact = open_artifact(store.add(SPEC, soc_name))
    node = store.environment
    if cann_version:
        node = msgspec.structs.replace(
            node, toolchain=msgspec.structs.replace(node.toolchain, cann_version=cann_version)
        )
    return KernelHandle(artifact, lambda: Device(runtime, node))


def test_a_call_launches_the_image_once_loaded_and_returns_the_output(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    handle = handle_on(tmp_path, runtime)
    x, y = torch.zeros(3), torch.zeros(3)
    assert handle(x, y) is y
    handle(x, y)
    assert runtime.loaded == [f"image of {handle.key}".encode()]
    expected = struct.pack("<QQi4x", x.data_ptr(), y.data_ptr(), 3)
    assert runtime.launches == [(1001, 7, expected, None, 512)] * 2
    assert runtime.synchronized == [None, None]


def test_a_stream_is_passed_on_and_not_waited_for(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    handle_on(tmp_path, runtime)(torch.zeros(3), torch.zeros(3), stream=77)
    assert runtime.launches[0][3] == 77
    assert runtime.synchronized == []


def test_something_else_than_a_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="stream is a str"):
        handle_on(tmp_path, RecordingRuntime())(torch.zeros(3), torch.zeros(3), stream="main")
    with pytest.raises(InvalidArgument, match="stream is -1; expected: None"):
        handle_on(tmp_path, RecordingRuntime())(torch.zeros(3), torch.zeros(3), stream=-1)


def test_nothing_is_launched_for_empty_work(tmp_path: Path) -> None:
    runtime = RecordingRuntime()
    y = torch.zeros(0)
    assert handle_on(tmp_path, runtime)(torch.zeros(0), y) is y
    assert runtime.launches == []
    assert runtime.loaded == []


def test_the_twin_plays_the_nodes_own_part(tmp_path: Path) -> None:
    runtime = RecordingRuntime("Ascend950PR_9599", 36)
    handle_on(tmp_path, runtime)(torch.zeros(3), torch.zeros(3))
    assert runtime.soc_name == "Ascend950PR_9579"


@pytest.mark.parametrize(
    ("runtime", "soc_name", "cann_version", "field"),
    [
        (RecordingRuntime(), "Ascend950DT_9581", None, "target.soc_name"),
        (RecordingRuntime(is_twin=False), None, None, "toolchain.kind"),
        (RecordingRuntime(), None, "9.3.0", "toolchain.cann_version"),
    ],
)
def test_a_kernel_for_another_device_is_refused_before_anything_is_loaded(
    tmp_path: Path, runtime: RecordingRuntime, soc_name: str, cann_version: str, field: str
) -> None:
    handle = handle_on(tmp_path, runtime, soc_name, cann_version)
    with pytest.raises(TargetMismatch) as caught:
        handle(torch.zeros(3), torch.zeros(3))
    assert caught.value.details["field"] == field
    assert field in caught.value.message
    assert runtime.loaded == []


def planted(tmp_path: Path, **changes: dict[str, Any]) -> TargetMismatch:
    """The refusal of a whole artifact, put under its own key by hand, whose passport differs."""
    store = PublishedStore(tmp_path / "store")
    passport = store.environment.passport(SPEC.to_record())
    for part, fields in changes.items():
        if part == "passport":
            passport = msgspec.structs.replace(passport, **fields)
        else:
            inner = msgspec.structs.replace(getattr(passport, part), **fields)
            passport = msgspec.structs.replace(passport, **{part: inner})
    path = store.layout.artifact_path(passport.key())
    path.parent.mkdir(parents=True)
    path.write_bytes(
        encode_artifact(
            passport=passport,
            launch=COPY_LAUNCH,
            choices={},
            image=b"planted",
            source="",
            log="",
            created_unix=1.0,
            compile_seconds=1.0,
        )
    )
    runtime = RecordingRuntime()
    handle = KernelHandle(open_artifact(path), lambda: Device(runtime, store.environment))
    with pytest.raises(TargetMismatch) as caught:
        handle(torch.zeros(3), torch.zeros(3))
    assert (runtime.loaded, runtime.launches) == ([], [])
    return caught.value


@pytest.mark.parametrize(
    ("part", "field", "value", "here"),
    [
        ("passport", "schema_version", 99, 1),
        ("toolchain", "kind", "cann", "twin"),
        ("toolchain", "cann_version", "8.5.0", "9.2.0"),
        ("toolchain", "host_arch", "riscv64", os.uname().machine),
        ("target", "soc_name", "Ascend950DT_9581", "Ascend950PR_9579"),
        ("target", "cube_cores", 32, 28),
        ("target", "vector_cores", 64, 56),
    ],
)
def test_a_planted_kernel_is_refused_by_the_one_field_that_differs(
    tmp_path: Path, part: str, field: str, value: Any, here: Any
) -> None:
    details = planted(tmp_path, **{part: {field: value}}).details
    path = field if part == "passport" else f"{part}.{field}"
    assert (details["field"], details["built_for"], details["here"]) == (path, value, here)


class AnotherArch(RecordingRuntime):
    """A device of the same name with another instruction set."""

    def configure_twin(self, soc: str, cube_cores: int, vector_cores: int) -> None:
        super().configure_twin(soc, cube_cores, vector_cores)
        self.device_info = msgspec.structs.replace(self.device_info, npu_arch=2201)


def test_another_instruction_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetMismatch, match=r"target.npu_arch dav-\d+, this device has dav-2201"):
        handle_on(tmp_path, AnotherArch())(torch.zeros(3), torch.zeros(3))


class FewerCores(RecordingRuntime):
    """A container that sees fewer cores than the part has."""

    def configure_twin(self, soc: str, cube_cores: int, vector_cores: int) -> None:
        super().configure_twin(soc, cube_cores - 4, vector_cores)


def test_another_core_count_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetMismatch, match=r"cube_cores 28, this device has 24"):
        handle_on(tmp_path, FewerCores())(torch.zeros(3), torch.zeros(3))


class FakeNpu(types.SimpleNamespace):
    """torch.npu as far as a launch needs it."""

    def current_device(self) -> int:
        return 2

    def current_stream(self) -> Any:
        return types.SimpleNamespace(npu_stream=4242)


class DeviceTensor:
    """What a torch_npu tensor shows of itself."""

    def __init__(self, index: int = 2) -> None:
        self.device = types.SimpleNamespace(type="npu", index=index)
        self.dtype = torch.float32
        self.shape = (3,)
        self._at = 512 * (1 + id(self) % 1000003)

    def data_ptr(self) -> int:
        return self._at

    def is_contiguous(self) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture
def npu_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, RecordingRuntime]:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(npu=FakeNpu()))  # type: ignore[arg-type]
    runtime = RecordingRuntime(is_twin=False)
    return Device(runtime, PublishedStore(tmp_path / "npu").environment), runtime  # type: ignore[arg-type]


def test_on_an_npu_the_current_stream_is_the_default(npu_device: tuple[Device, Any]) -> None:
    device, _ = npu_device
    assert device.current(None) == ("npu:2", 2, 4242)
    assert device.current(7) == ("npu:2", 2, 7)
    assert device.current(types.SimpleNamespace(npu_stream=9)) == ("npu:2", 2, 9)


def test_without_torch_npu_a_launch_on_an_npu_is_refused(
    npu_device: tuple[Device, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="import torch_npu"):
        npu_device[0].current(None)
