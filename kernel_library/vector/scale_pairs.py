"""Scale pairs: scales of any origin as packed e8m0 pairs, rows along memory: what scaled products read.

The result is [pairs, rows]: 16 bits hold the scales of two adjacent blocks of K, the first in the low byte. A
source has a scale for ``repeat`` rows and lies by row ("k") or by block ("mn").
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any, Literal

import msgspec

from kaas.kernel_library.vector.block_values import ScaleType, float_exponent
from kaas.kernel_library.vector.row_pipeline import row_pipeline
from kaas.kernel_library.vector.row_plan import RowPlan, padded
from kaas.kernel_library.vector.tile_pipeline import TilePlan, plan_tiles
from kaas.proto.target import Target

SCALE_PAIR_SOURCES = ("kaas.kernel_library.vector.block_values", "kaas.kernel_library.vector.scale_pairs")
"""For ``Family.sources`` of a family built on this module."""

ALIGNMENT = 256
"""Where groups of rows, or of K, may start."""
Major = Literal["k", "mn"]
Groups = Literal["none", "m", "k"]

ROW_COUNTS = (128, 256)
BLOCK_COUNTS = (16, 32, 64, 128)
NOMINAL_BLOCKS = 224
"""How many blocks a dynamic K is taken to have."""


class PairLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One conversion: ``source`` fp32 (powers of two) or e8m0 pairs, ``major`` its faster axis."""

    source: ScaleType
    major: Major
    repeat: int

    @property
    def per_pair(self) -> int:
        """Source elements for one pair."""
        return 2 if self.source == "fp32" else 1

    @property
    def _bytes(self) -> int:
        return 4 if self.source == "fp32" else 2

    def source_rows(self, rows: int) -> int:
        """Source rows for a tile of ``rows`` rows."""
        return -(-rows // self.repeat)

    def source_shape(self, rows: int, blocks: int) -> tuple[int, int]:
        """UB shape of a tile's source; rows are padded to 32 bytes, and by one more to spread banks."""
        elements, per_block = blocks // 2 * self.per_pair, 32 // self._bytes
        if self.major == "k":
            return self.source_rows(rows), padded(elements, per_block) + per_block
        return elements, padded(self.source_rows(rows), per_block) + per_block

    def stage_bytes(self, rows: int, blocks: int) -> int:
        """UB bytes of a stage: the source and the pairs."""
        down, across = self.source_shape(rows, blocks)
        return down * across * self._bytes + blocks // 2 * rows * 2

    def plan(
        self, target: Target, blocks: int | None, rows: int | None, *, field: str, fixed_bytes: int = 0
    ) -> TilePlan:
        """Tiles of rows x blocks; ``None`` for what is dynamic. ``fixed_bytes`` of UB are taken already."""
        return plan_tiles(
            target,
            width=blocks or NOMINAL_BLOCKS,
            stage_bytes=self.stage_bytes,
            row_counts=ROW_COUNTS,
            column_counts=BLOCK_COUNTS,
            bytes_per_value=self._bytes * self.per_pair / 2 / self.repeat + 1,
            rows=rows,
            passes=4.0,
            field=field,
            fixed_bytes=fixed_bytes,
        )

    def convert(self, rows: int) -> Any:
        """A macro ``(source_ub, pairs_ub, slot, first, count, present, filled)`` for a ``T.SimdVF``.

        Makes pairs ``first`` to ``first + count`` of a tile of ``rows`` rows. ``present`` source elements of
        a row (from the tile's first) and ``filled`` rows count; scales of the others become 0.
        """
        import tilelang.ascend.language as T

        wide, repeat_shift = self.source == "fp32", self.repeat.bit_length() - 1
        lanes = 64 if wide else 128
        signed, unsigned = ("int32", "uint32x64") if wide else ("int16", "uint16x128")
        count_of = T.uint32 if wide else T.uint16
        exponent = float_exponent()

        @T.macro
        def gathered(source_ub: Any, slot: Any, row: Any, element: Any, present: Any, filled: Any) -> Any:
            """Element ``element`` of ``lanes`` rows from ``row``, 0 where there is none."""
            lane = T.simd.vadds(T.simd.vci(T.cast(0, signed), signed), T.cast(row, signed))
            index = T.simd.vshrs(T.reinterpret(unsigned, lane), repeat_shift)
            known = T.min(T.max(filled - row, 0), T.max(present - element, 0) * lanes)
            mask = T.simd.update_mask(T.cast(known, "uint32"), 32 if wide else 16)
            if self.major == "k":
                by_row = T.simd.vmuls(index, count_of(source_ub.shape[2]))
                return T.simd.vgather2(source_ub[slot, 0, element], by_row, mask)
            return T.simd.vgather2(source_ub[slot, element, 0], index, mask)

        @T.macro
        def from_floats(
            source_ub: Any, pairs_ub: Any, slot: Any, pair: Any, row: Any, present: Any, filled: Any
        ) -> None:
            low = gathered(source_ub, slot, row, pair * 2, present, filled)
            high = gathered(source_ub, slot, row, pair * 2 + 1, present, filled)
            both = T.simd.vor(
                exponent(T.reinterpret("uint32x64", low)),
                T.simd.vshls(exponent(T.reinterpret("uint32x64", high)), 8),
            )
            T.simd.vsts(pairs_ub[slot, pair, row], T.reinterpret("uint16x128", both), dist="PK_B32")

        @T.macro
        def from_pairs(
            source_ub: Any, pairs_ub: Any, slot: Any, pair: Any, row: Any, present: Any, filled: Any
        ) -> None:
            both = gathered(source_ub, slot, row, pair, present, filled)
            T.simd.vsts(pairs_ub[slot, pair, row], both, dist="NORM_B16")

        vector = from_floats if wide else from_pairs

        @T.macro
        def convert(
            source_ub: Any, pairs_ub: Any, slot: Any, first: Any, count: Any, present: Any, filled: Any
        ) -> None:
            for step in T.serial(T.cast(count, "uint16")):
                for chunk in T.serial(T.uint16(rows // lanes)):
                    pair = first + T.cast(step, "int32")
                    row = T.cast(chunk, "int32") * lanes
                    vector(source_ub, pairs_ub, slot, pair, row, present, filled)

        return convert


def pair_pass(
    layout: PairLayout,
    plan: TilePlan,
    cores: int,
    *,
    source: str,
    pairs: str,
    batches: Any,
    rows: Any,
    elements: Any,
    source_rows: Any = None,
    groups: Groups = "none",
    group_count: Any = None,
) -> Any:
    """A macro ``run(state, core)`` that converts whole matrices of scales.

    ``state`` is (call, source UB, pairs UB); ``source`` and ``pairs`` name arguments of the call, which have
    three axes if ``batches`` is not ``None``. ``rows`` is the number of rows of the result, ``elements`` the
    length of a source row, and ``source_rows`` how many there are if ``rows`` does not say so. With
    ``groups`` the argument ``grouped_layout`` has the ends of groups of rows or of K, each of which starts at
    the next multiple of :data:`ALIGNMENT`; scales of what is in no group become 0.
    """
    import tilelang.ascend.language as T

    tile_rows, tile_pairs = plan.rows, plan.columns // 2
    per_pair, repeat = layout.per_pair, layout.repeat
    pair_count = T.truncdiv(elements + per_pair - 1, per_pair)
    across = T.truncdiv(pair_count + tile_pairs - 1, tile_pairs)
    source_count = T.truncdiv(rows + repeat - 1, repeat) if source_rows is None else source_rows
    down = T.truncdiv(rows + tile_rows - 1, tile_rows)
    convert = layout.convert(tile_rows)

    def filled_rows(row: Any) -> Any:
        """Rows of a tile that have a source."""
        return T.min(tile_rows, T.min(rows, source_count * repeat) - row)

    @T.macro
    def load_part(
        source: Any, source_ub: Any, slot: Any, row: Any, count: Any, first: Any, length: Any
    ) -> None:
        if layout.major == "k":
            T.copy(source[row : row + count, first : first + length], source_ub[slot, 0:count, 0:length])
        else:
            T.copy(source[first : first + length, row : row + count], source_ub[slot, 0:length, 0:count])

    @T.macro
    def load_batch(
        source: Any, source_ub: Any, slot: Any, batch: Any, row: Any, count: Any, first: Any, length: Any
    ) -> None:
        if layout.major == "k":
            T.copy(
                source[batch, row : row + count, first : first + length], source_ub[slot, 0:count, 0:length]
            )
        else:
            T.copy(
                source[batch, first : first + length, row : row + count], source_ub[slot, 0:length, 0:count]
            )

    @T.macro
    def load(state: Any, slot: Any, unit: Any, batch: Any, row: Any, pair: Any) -> None:
        call, source_ub, _ = state
        count = T.min(layout.source_rows(tile_rows), source_count - T.truncdiv(row, repeat))
        first = pair * per_pair
        length = T.min(tile_pairs * per_pair, elements - first)
        if batches is None:
            load_part(getattr(call, source), source_ub, slot, T.truncdiv(row, repeat), count, first, length)
        else:
            load_batch(
                getattr(call, source), source_ub, slot, batch, T.truncdiv(row, repeat), count, first, length
            )

    @T.macro
    def whole(state: Any, slot: Any, row: Any, pair: Any, filled: Any) -> None:
        _, source_ub, pairs_ub = state
        present = elements - pair * per_pair
        count = T.min(tile_pairs, pair_count - pair)
        with T.SimdVF():
            convert(source_ub, pairs_ub, slot, 0, count, present, filled)

    @T.macro
    def by_row_groups(state: Any, slot: Any, row: Any, pair: Any) -> None:
        """A tile lies in one aligned interval, so that at most one group has rows in it."""
        call, _, _ = state
        start = T.alloc_var("int32")
        filled = T.alloc_var("int32")
        start = 0
        filled = 0
        for group in T.serial(group_count):
            if (start <= row) & (row < call.grouped_layout[group]):
                filled = T.truncdiv(call.grouped_layout[group] + repeat - 1, repeat) * repeat - row
            start = T.truncdiv(call.grouped_layout[group] + ALIGNMENT - 1, ALIGNMENT) * ALIGNMENT
        whole(state, slot, row, pair, T.min(filled, filled_rows(row)))

    @T.macro
    def by_k_groups(state: Any, slot: Any, row: Any, pair: Any) -> None:
        """Each group converts its own pairs of the tile; what follows it up to the next one becomes 0."""
        call, source_ub, pairs_ub = state
        first = T.alloc_var("int32")
        last = T.alloc_var("int32")
        present = T.alloc_var("int32")
        last = 0
        for group in T.serial(group_count):
            first = last
            last = (
                T.truncdiv(call.grouped_layout[group] + ALIGNMENT - 1, ALIGNMENT) * (ALIGNMENT // 64) - pair
            )
            present = (
                T.truncdiv(call.grouped_layout[group] + 64 // per_pair - 1, 64 // per_pair) - pair * per_pair
            )
            if group == group_count - 1:
                last = tile_pairs
            if group == 0:
                first = 0
            first = T.min(T.max(first, 0), T.min(tile_pairs, pair_count - pair))
            last = T.min(T.max(last, first), T.min(tile_pairs, pair_count - pair))
            if first < last:
                with T.SimdVF():
                    convert(
                        source_ub,
                        pairs_ub,
                        slot,
                        first,
                        last - first,
                        T.min(present, elements - pair * per_pair),
                        filled_rows(row),
                    )

    @T.macro
    def compute(state: Any, slot: Any, unit: Any, batch: Any, row: Any, pair: Any) -> None:
        if groups == "m":
            by_row_groups(state, slot, row, pair)
        elif groups == "k":
            by_k_groups(state, slot, row, pair)
        else:
            whole(state, slot, row, pair, filled_rows(row))

    @T.macro
    def store(state: Any, slot: Any, unit: Any, batch: Any, row: Any, pair: Any) -> None:
        call, _, pairs_ub = state
        count = T.min(tile_rows, rows - row)
        length = T.min(tile_pairs, pair_count - pair)
        if batches is None:
            T.copy(
                pairs_ub[slot, 0:length, 0:count],
                getattr(call, pairs)[pair : pair + length, row : row + count],
            )
        else:
            T.copy(
                pairs_ub[slot, 0:length, 0:count],
                getattr(call, pairs)[batch, pair : pair + length, row : row + count],
            )

    def placed(task: Any) -> Any:
        @T.macro
        def at_place(state: Any, slot: Any, unit: Any, count: Any) -> None:
            batch = T.alloc_var("int32")
            row = T.alloc_var("int32")
            pair = T.alloc_var("int32")
            pair = T.truncmod(unit, across) * tile_pairs
            row = T.truncmod(T.truncdiv(unit, across), down) * tile_rows
            batch = T.truncdiv(T.truncdiv(unit, across), down)
            task(state, slot, unit, batch, row, pair)

        return at_place

    return row_pipeline(
        RowPlan(rows=1, stages=plan.stages, why=plan.why),
        cores,
        across * down * (1 if batches is None else batches),
        load=placed(load),
        compute=placed(compute),
        store=placed(store),
    )


def allocate_pairs(layout: PairLayout, plan: TilePlan) -> tuple[Any, Any]:
    """UB of a pass: source and pairs; call it where buffers may be allocated."""
    import tilelang.ascend.language as T

    shape = (plan.stages, *layout.source_shape(plan.rows, plan.columns))
    return (
        T.alloc_shared(shape, "float32" if layout.source == "fp32" else "uint16"),
        T.alloc_shared((plan.stages, plan.columns // 2, plan.rows), "uint16"),
    )
