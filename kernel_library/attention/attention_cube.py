"""Cube side of attention: scores of a block of keys and the values they weigh, for one tile of queries.

    Q, K, V: global memory --MTE2--> L1 --MTE1--> L0A/L0B --M--> L0C --FIX--> UB of both vector cores
    P: vector cores --MTE3--> L1

The scores of the next block are computed before the values of the last one are weighed, so that the vector
cores make weights of scores meanwhile. Scores [rows, keys] and chunks of 128 columns of weighted values go
through one ring of accumulators in L0C and one in UB; both sides count the same turns.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.attention.attention_tiles import CHUNK, L0_SLOTS, WEIGHT_SLOTS, AttentionTiles
from kaas.kernel_library.cube.cube_pipeline import (
    CORE_PAIR,
    FRACTAL,
    LEAST_ORDERED_FRACTALS,
    SECOND_VECTOR_CORE,
    Rings,
)

# Flags between a cube core and its two vector cores, one per slot of a ring.
ACCUMULATOR_EMPTY = 0
ACCUMULATOR_FULL = 4
WEIGHTS_FULL = 8

QUERY_EVENT = 7
"""Of MTE1 and MTE2, beside those of the slots of keys."""


class AttentionCube(msgspec.Struct, frozen=True):
    """Macros of the cube side.

    ``open(rings, accumulator_ub, weights_l1)`` before the first tile: accumulators are [slots, rows/2, CHUNK]
    fp32 in UB, weights [2, rows, keys] in L1, both seen by both sides. ``tile(rings, place, blocks)``
    multiplies one tile of queries with ``blocks`` blocks of keys; ``close()`` ends it.
    """

    open: Callable[[Rings, Any, Any], Any]
    tile: Callable[[Rings, Any, Any], Any]
    close: Callable[[], Any]

    def visitor(self, rings: Rings) -> Any:
        """A macro ``visit(place, blocks)`` for a walk over tiles.

        It is made here because a macro's text knows no functions of its own.
        """
        import tilelang.ascend.language as T

        @T.macro
        def multiply(place: Any, blocks: Any) -> None:
            self.tile(rings, place, blocks)

        return multiply


def attention_cube(
    tiles: AttentionTiles,
    *,
    load_query: Callable[[Any, Any], Any],
    load_keys: Callable[[Rings, Any, Any], Any],
    release_keys: Callable[[], Any] | None = None,
) -> AttentionCube:
    """The macros for ``tiles``.

    ``load_query(place, q_l1)`` copies the queries of a tile, [rows, d_qk]. ``load_keys(rings, place, block)``
    copies a block of keys to ``rings.k_l1[rings.key_slot(block), :, :]``, [keys, d_qk], and its values to the
    same slot of ``rings.v_l1`` unless they are the first columns of the keys. What is no key must become
    zero. Both issue on MTE2 only. Where vector cores fill the slots, ``load_keys`` waits for them,
    ``release_keys()`` says on MTE1 that the oldest slot is free, and ``k_l1`` [slots, keys, d_qk] is kept in
    ``rings`` before ``open``.
    """
    import tilelang.ascend.language as T

    rows, keys, step_k = tiles.rows, tiles.keys, tiles.step_k
    slots, acc_slots = tiles.key_slots, tiles.accumulator_slots
    dtype = "bfloat16"
    narrow_scores = (rows // FRACTAL) * -(-keys // FRACTAL) < LEAST_ORDERED_FRACTALS
    narrow_values = (rows // FRACTAL) * (CHUNK // FRACTAL) < LEAST_ORDERED_FRACTALS

    @T.macro
    def open_rings(rings: Any, accumulator_ub: Any, weights_l1: Any) -> None:
        q_l1 = T.alloc_l1((rows, tiles.d_qk), dtype)
        given = "k_l1" in rings.__dict__
        k_l1 = rings.k_l1 if given else T.alloc_l1((slots, keys, tiles.d_qk), dtype)
        v_l1 = k_l1 if tiles.shared_values else T.alloc_l1((slots, keys, tiles.d_v), dtype)
        a_l0 = T.alloc_l0a((L0_SLOTS, rows, CHUNK), dtype)
        # One layout serves keys and values of whole blocks; shorter ones have one each.
        keys_l0 = T.alloc_l0b((L0_SLOTS, keys, CHUNK if keys == CHUNK else step_k), dtype)
        values_l0 = keys_l0 if keys == CHUNK else T.alloc_l0b((L0_SLOTS, CHUNK, keys), dtype)
        l0c = T.alloc_l0c((acc_slots, rows, CHUNK), "float32")
        l0_turn = T.alloc_var("int32", init=0)
        turn = T.alloc_var("int32", init=0)
        first = T.alloc_var("int32", init=0)
        rings.keep(q_l1=q_l1, k_l1=k_l1, v_l1=v_l1, a_l0=a_l0, l0c=l0c)
        rings.keep(keys_l0=keys_l0, values_l0=values_l0)
        rings.keep(accumulator_ub=accumulator_ub, weights_l1=weights_l1)
        rings.keep(l0_turn=l0_turn.buffer, turn=turn.buffer, first=first.buffer)
        rings.keep(key_slot=lambda block: (rings.first[0] + block) % slots)
        for slot in T.serial(slots):
            T.ascend_set_flag("MTE1_MTE2", slot)
        T.ascend_set_flag("MTE1_MTE2", QUERY_EVENT)
        for slot in T.serial(L0_SLOTS):
            T.ascend_set_flag("M_MTE1", slot)
        for slot in T.serial(acc_slots):
            T.ascend_set_flag("FIX_M", slot)

    @T.macro
    def hand_over(rings: Any, columns: int) -> None:
        """The accumulator of this turn to UB, half of its rows to each vector core."""
        slot = rings.turn[0] % acc_slots
        T.ascend_set_flag("M_FIX", slot)
        T.ascend_wait_flag("M_FIX", slot)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", ACCUMULATOR_EMPTY + slot)
        T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + ACCUMULATOR_EMPTY + slot)
        T.dual_copy(rings.l0c[slot, :, 0:columns], rings.accumulator_ub[slot, :, 0:columns])
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_FIX", ACCUMULATOR_FULL + slot)
        T.ascend_cross_core_set_flag(CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + ACCUMULATOR_FULL + slot)
        T.ascend_set_flag("FIX_M", slot)
        rings.turn[0] += 1

    @T.macro
    def scores(rings: Any, block: Any) -> None:
        T.ascend_wait_flag("FIX_M", rings.turn[0] % acc_slots)
        for part in T.serial(tiles.d_qk // step_k):
            l0 = rings.l0_turn[0] % L0_SLOTS
            T.ascend_wait_flag("M_MTE1", l0)
            T.copy(
                rings.q_l1[:, part * step_k : part * step_k + step_k],
                rings.a_l0[l0, :, 0:step_k],
            )
            T.copy(
                rings.k_l1[rings.key_slot(block), :, part * step_k : part * step_k + step_k],
                rings.keys_l0[l0, :, 0:step_k],
            )
            T.ascend_set_flag("MTE1_M", l0)
            T.ascend_wait_flag("MTE1_M", l0)
            T.gemm(
                rings.a_l0[l0, :, 0:step_k],
                rings.keys_l0[l0, :, 0:step_k],
                rings.l0c[rings.turn[0] % acc_slots, :, 0:keys],
                transpose_B=True,
                clear_accum=part == 0,
            )
            if narrow_scores:
                T.ascend_pipe_barrier("PIPE_M")
            T.ascend_set_flag("M_MTE1", l0)
            rings.l0_turn[0] += 1
        hand_over(rings, keys)

    @T.macro
    def weighted_values(rings: Any, block: Any, weights: Any) -> None:
        for chunk in T.serial(tiles.d_v // CHUNK):
            l0 = rings.l0_turn[0] % L0_SLOTS
            T.ascend_wait_flag("FIX_M", rings.turn[0] % acc_slots)
            T.ascend_wait_flag("M_MTE1", l0)
            T.copy(rings.weights_l1[weights, :, :], rings.a_l0[l0, :, 0:keys])
            T.copy(
                rings.v_l1[rings.key_slot(block), :, chunk * CHUNK : chunk * CHUNK + CHUNK],
                rings.values_l0[l0, :, :],
                transpose=True,
            )
            T.ascend_set_flag("MTE1_M", l0)
            T.ascend_wait_flag("MTE1_M", l0)
            T.gemm(
                rings.a_l0[l0, :, 0:keys],
                rings.values_l0[l0, :, :],
                rings.l0c[rings.turn[0] % acc_slots, :, :],
                transpose_B=True,
                clear_accum=True,
            )
            if narrow_values:
                T.ascend_pipe_barrier("PIPE_M")
            T.ascend_set_flag("M_MTE1", l0)
            rings.l0_turn[0] += 1
            hand_over(rings, CHUNK)

    @T.macro
    def tile(rings: Any, place: Any, blocks: Any) -> None:
        steps = T.alloc_var("int32")
        # Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        steps = T.if_then_else(blocks > 0, blocks + 1, 0)
        for step in T.serial(steps):
            if step == 0:
                T.ascend_wait_flag("MTE1_MTE2", QUERY_EVENT)
                # MTE1 waits for the first keys, which come behind the queries on the same pipe.
                load_query(place, rings.q_l1)
            if step < blocks:
                T.ascend_wait_flag("MTE1_MTE2", rings.key_slot(step))
                load_keys(rings, place, step)
                T.ascend_set_flag("MTE2_MTE1", rings.key_slot(step))
                T.ascend_wait_flag("MTE2_MTE1", rings.key_slot(step))
                scores(rings, step)
                if step == blocks - 1:
                    T.ascend_set_flag("MTE1_MTE2", QUERY_EVENT)
            if step > 0:
                weights = (rings.first[0] + step - 1) % WEIGHT_SLOTS
                T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_MTE1", WEIGHTS_FULL + weights)
                T.ascend_cross_core_wait_flag(
                    CORE_PAIR, "PIPE_MTE1", SECOND_VECTOR_CORE + WEIGHTS_FULL + weights
                )
                weighted_values(rings, step - 1, weights)
                if release_keys is not None:
                    release_keys()
                T.ascend_set_flag("MTE1_MTE2", rings.key_slot(step - 1))
        rings.first[0] += blocks

    @T.macro
    def close() -> None:
        for slot in T.serial(slots):
            T.ascend_wait_flag("MTE1_MTE2", slot)
        T.ascend_wait_flag("MTE1_MTE2", QUERY_EVENT)
        for slot in T.serial(L0_SLOTS):
            T.ascend_wait_flag("M_MTE1", slot)
        for slot in T.serial(acc_slots):
            T.ascend_wait_flag("FIX_M", slot)
            T.ascend_cross_core_wait_flag(CORE_PAIR, "PIPE_FIX", ACCUMULATOR_EMPTY + slot)
            T.ascend_cross_core_wait_flag(
                CORE_PAIR, "PIPE_FIX", SECOND_VECTOR_CORE + ACCUMULATOR_EMPTY + slot
            )

    return AttentionCube(open_rings, tile, close)
