"""get_kernel: memo, store and strictness, without any daemon."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.client_store import PublishedStore

from kaas import (
    DaemonUnavailable,
    GemmSpec,
    InvalidArgument,
    InvalidSpec,
    RmsNormSpec,
    StrictMiss,
    UnsupportedTarget,
    aget_kernel,
    get_kernel,
)
from kaas.client import api
from kaas.client.key_schedule import KeySchedule
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.targets import target_named

SPEC = GemmSpec(n=64, k=64)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PublishedStore]:
    monkeypatch.setenv("KAAS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KAAS_SOCKET", str(tmp_path / "kaas.sock"))
    api.forget()
    yield PublishedStore(tmp_path / "store")
    api.forget()


def test_a_kernel_in_the_store_needs_no_daemon(store: PublishedStore) -> None:
    path = store.add(SPEC)
    handle = get_kernel(SPEC)
    assert handle.key == path.stem
    assert handle.origin == "store"
    assert handle.passport.spec == SPEC.to_record()
    assert (handle.source, handle.log, handle.choices) == ("// source", "fine", {"tile": 1})
    assert handle.launch.block_count == 7


def test_the_same_question_gives_the_same_handle_even_when_its_file_is_gone(store: PublishedStore) -> None:
    path = store.add(SPEC)
    handle = get_kernel(SPEC)
    path.unlink()
    assert get_kernel(GemmSpec(n=64, k=64)) is handle
    assert asyncio.run(aget_kernel(SPEC)) is handle
    assert bytes(handle._artifact.image) == f"image of {handle.key}".encode()


def test_other_parts_have_other_kernels(store: PublishedStore) -> None:
    store.add(SPEC)
    store.add(SPEC, "Ascend950DT_9581")
    own, other = get_kernel(SPEC), get_kernel(SPEC, soc_name="ascend950dt_9581")
    assert own.key != other.key
    assert other.passport.target.cube_cores == 32
    assert get_kernel(SPEC, soc_name="ascend950pr_9579").key == own.key


def test_an_unknown_part_is_refused_with_near_names(store: PublishedStore) -> None:
    with pytest.raises(UnsupportedTarget, match="Ascend950PR_9579"):
        get_kernel(SPEC, soc_name="Ascend950PR_95799")


def test_a_strict_miss_needs_no_daemon_and_names_the_spec(store: PublishedStore) -> None:
    with pytest.raises(StrictMiss, match=r"GemmSpec\(.*n=64") as caught:
        get_kernel(SPEC, strict=True)
    assert caught.value.details["spec"]["n"] == 64


def test_a_miss_without_a_daemon_says_how_to_start_one(store: PublishedStore, tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailable) as caught:
        get_kernel(SPEC)
    assert f"kaas serve --socket {tmp_path / 'kaas.sock'}" in str(caught.value)


def test_a_socket_that_nobody_listens_at_is_no_daemon(store: PublishedStore, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "kaas.sock"))
    with pytest.raises(DaemonUnavailable, match="nobody accepts"):
        get_kernel(SPEC, timeout=0.1)
    with pytest.raises(DaemonUnavailable):
        asyncio.run(aget_kernel(SPEC, timeout=0.1))


@pytest.mark.parametrize("damage", [b"", b"KAASKRN\n", b"x" * 5000])
def test_a_damaged_artifact_is_a_miss(store: PublishedStore, damage: bytes) -> None:
    store.add(SPEC).write_bytes(damage)
    with pytest.raises(StrictMiss):
        get_kernel(SPEC, strict=True)
    with pytest.raises(DaemonUnavailable):
        get_kernel(SPEC, timeout=0.1)


def test_another_kernels_file_under_this_key_is_a_miss(store: PublishedStore) -> None:
    wrong = store.add(GemmSpec(n=128, k=64)).read_bytes()
    store.add(SPEC).write_bytes(wrong)
    with pytest.raises(StrictMiss):
        get_kernel(SPEC, strict=True)


def test_a_store_without_environment_sends_the_question_to_the_daemon(
    store: PublishedStore,
) -> None:
    store.layout.environment_file.unlink()
    with pytest.raises(DaemonUnavailable):
        get_kernel(SPEC, strict=True, timeout=0.1)


@pytest.mark.parametrize("value", [{"family": "gemm"}, "gemm", None, 3, GemmSpec])
def test_what_is_no_spec_is_refused(store: PublishedStore, value: object) -> None:
    with pytest.raises(InvalidSpec, match="parse_spec"):
        get_kernel(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("soc_name", [5, b"Ascend950PR_9579", ["Ascend950PR_9579"]])
def test_a_soc_name_is_text(store: PublishedStore, soc_name: object) -> None:
    with pytest.raises(InvalidArgument, match="soc_name is a") as caught:
        get_kernel(SPEC, soc_name=soc_name)  # type: ignore[arg-type]
    assert caught.value.details["argument"] == "soc_name"


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        GemmSpec(m=17, n=33, k=65, dtype_a="fp32", dtype_b="fp32", dtype_d="fp32", layout="tt", alpha=True),
        RmsNormSpec(hidden=576),
        RmsNormSpec(hidden=7168, eps=1e-5, residual=True, weight=False, tokens=3),
    ],
)
def test_keys_computed_fast_equal_the_passports(store: PublishedStore, spec: KernelSpec) -> None:
    for target in (store.environment.target, target_named("Ascend950DT_9581")):
        schedule = KeySchedule(store.environment, target)
        expected = store.environment.passport(spec.to_record(), target).key()
        assert schedule.key(spec) == schedule.key(spec) == expected


def test_a_new_environment_gives_new_keys(store: PublishedStore, tmp_path: Path) -> None:
    import msgspec

    store.add(SPEC)
    before = get_kernel(SPEC)
    newer = msgspec.structs.replace(store.environment, generation=2, options=("-O3",))
    PublishedStore(store.root, newer).add(SPEC)
    assert get_kernel(SPEC) is before
    api.forget()
    assert get_kernel(SPEC).passport.options == ("-O3",)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True])
def test_a_timeout_that_is_none_is_refused_by_name(store: PublishedStore, timeout: object) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        get_kernel(SPEC, timeout=timeout)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, None])
def test_an_endless_timeout_is_no_deadline(store: PublishedStore, timeout: float | None) -> None:
    with pytest.raises(DaemonUnavailable):
        get_kernel(SPEC, timeout=timeout)
