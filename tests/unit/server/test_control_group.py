"""Memory and cores by control group, read from folders that look like /proc and /sys/fs/cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.server.control_group import core_quota, memory_room

GIB = 1 << 30


class Machine:
    """A fake /proc and /sys/fs/cgroup with 16 GiB, 10 of them available."""

    def __init__(self, folder: Path, groups: str) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        self.write(self.proc / "meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {10 << 20} kB\n")
        self.write(self.proc / "self" / "cgroup", groups)
        self.mount.mkdir()

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, path: str, **files: object) -> None:
        for name, value in files.items():
            first, _, rest = name.partition("_")
            self.write(self.mount / path / f"{first}.{rest}", f"{value}\n")

    def room(self) -> tuple[float, float]:
        room = memory_room(self.proc, self.mount)
        return room.total_bytes / GIB, room.free_bytes / GIB

    def cores(self) -> int | None:
        return core_quota(self.proc, self.mount)


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    assert machine.room() == (16, 10)
    assert machine.cores() is None


def test_version_2_limit_less_use_counts_and_page_cache_is_free(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/pod/kaas\n")
    machine.group(
        "pod/kaas",
        memory_max=6 * GIB,
        memory_current=4 * GIB,
        memory_stat=f"anon {2 * GIB}\ninactive_file {GIB}",
    )
    machine.group("pod", memory_max="max", memory_current=9 * GIB)
    assert machine.room() == (6, 3)


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/pod/kaas\n")
    machine.group("pod/kaas", memory_max=8 * GIB, memory_current=GIB, cpu_max="400000 100000")
    machine.group("pod", memory_max=12 * GIB, memory_current=11 * GIB, cpu_max="150000 100000")
    assert machine.room() == (8, 1)
    assert machine.cores() == 2  # one and a half, rounded up


def test_version_1_limit_less_use_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n")
    machine.group(
        "memory/job",
        memory_limit_in_bytes=5 * GIB,
        memory_usage_in_bytes=3 * GIB,
        memory_stat=f"total_inactive_file {GIB}",
    )
    machine.group("cpu,cpuacct/job", cpu_cfs_quota_us=300000, cpu_cfs_period_us=100000)
    assert machine.room() == (5, 3)
    assert machine.cores() == 3


def test_version_1_without_a_limit_is_no_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/\n1:cpu:/\n")
    machine.group("memory", memory_limit_in_bytes=9223372036854771712, memory_usage_in_bytes=GIB)
    machine.group("cpu", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    assert machine.room() == (16, 10)
    assert machine.cores() is None


def test_a_path_of_the_host_falls_back_to_the_containers_root(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/kubepods/pod17/abc\n")
    machine.group("memory", memory_limit_in_bytes=2 * GIB, memory_usage_in_bytes=GIB)
    assert machine.room() == (2, 1)


def test_use_beyond_the_limit_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a\n")
    machine.group("a", memory_max=GIB, memory_current=2 * GIB)
    assert machine.room() == (1, 0)


@pytest.mark.parametrize("groups", ["", "nonsense", "0::/../../etc\n", "\x00::\n"])
def test_whatever_proc_says_something_is_found(tmp_path: Path, groups: str) -> None:
    assert Machine(tmp_path, groups).room() == (16, 10)


def test_this_machine_has_room() -> None:
    room = memory_room()
    assert 0 < room.free_bytes <= room.total_bytes
