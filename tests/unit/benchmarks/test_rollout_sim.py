"""The rollout simulation against what can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.rollout_sim import WAYS, Assumed, Measured, shared, simulate, swarm

MEASURED = Measured(compile_s=1.0, artifact_bytes=500_000.0, import_s=0.001)


def test_alone_one_gets_its_own_limit_and_many_at_once_share() -> None:
    assert shared(np.array([2.0]), 10.0, capacity=100.0, limit=5.0) == pytest.approx([4.0])
    assert shared(np.zeros(10), 10.0, capacity=20.0, limit=5.0) == pytest.approx([5.0] * 10)


def test_who_comes_later_slows_the_first_and_work_is_conserved() -> None:
    # Alone until 1 (gets 10), then both get 5 a second: the first has 20 at 3, the second its rest alone.
    assert shared(np.array([0.0, 1.0]), 20.0, capacity=10.0, limit=10.0) == pytest.approx([3.0, 4.0])
    begin = np.linspace(0, 1, 50)
    assert shared(begin, 7.0, capacity=10.0, limit=10.0).max() == pytest.approx(50 * 7.0 / 10.0, rel=0.01)


def test_a_swarm_is_as_slow_as_its_pieces_and_grows_by_doubling() -> None:
    assumed = Assumed(seeds=1, piece_bytes=1.0, node_rate=1.0)
    alone = swarm(np.zeros(1), 8, assumed, np.random.default_rng(1))
    assert alone == pytest.approx([8.0])
    many = swarm(np.zeros(1024), 8, assumed, np.random.default_rng(1))
    assert 8 + math.log2(1024) - 4 <= many.max() <= 3 * (8 + math.log2(1024))


def test_every_node_gets_warm_and_the_origin_sends_what_follows_from_the_way() -> None:
    assumed = Assumed(kernels=40)
    found = simulate(MEASURED, assumed, sizes=(32, 320))
    content = 40 * 500_000.0
    assert set(found) == set(WAYS)
    for by_size in found.values():
        assert all(math.isfinite(one.warm_s) and one.half_s <= one.warm_s for one in by_size.values())
    assert found["compile everywhere"][320].compile_cpu_s == 320 * 40
    assert found["kaas, registry"][320].compile_cpu_s == 40
    assert found["kaas, registry"][320].origin_bytes == 320 * content
    assert found["kaas, registry behind peers"][320].origin_bytes == assumed.seeds * content
