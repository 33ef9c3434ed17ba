"""Kernels in memory: bounded by bytes, the one unused for longest goes."""

from __future__ import annotations

from kaas.cache.memory_tier import MemoryKernel, MemoryTier


def kernel(name: str, size: int = 10) -> MemoryKernel:
    return MemoryKernel(key=name, encoded=bytes(size), row={"key": name})


def test_the_one_unused_for_longest_makes_room() -> None:
    tier = MemoryTier(30)
    for name in "abc":
        assert tier.put(kernel(name))
    assert tier.get("a") is not None
    assert tier.put(kernel("d"))
    assert [one.key for one in tier.kernels()] == ["c", "a", "d"]
    assert tier.get("b") is None
    assert (tier.size_bytes, tier.dropped, len(tier)) == (30, 1, 3)


def test_one_that_is_too_large_costs_nobody_else() -> None:
    tier = MemoryTier(30)
    tier.put(kernel("a"))
    assert not tier.put(kernel("b", 31))
    assert "a" in tier
    assert not MemoryTier(0).put(kernel("a", 1))


def test_replacing_and_dropping_keep_the_sum_right() -> None:
    tier = MemoryTier(30)
    tier.put(kernel("a", 10))
    tier.put(kernel("a", 20))
    assert (tier.size_bytes, len(tier)) == (20, 1)
    assert tier.drop("a")
    assert not tier.drop("a")
    assert (tier.size_bytes, len(tier)) == (0, 0)
