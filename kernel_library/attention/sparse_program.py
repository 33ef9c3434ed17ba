"""Sparse attention program: every token of queries meets the keys of its own index lists.

The cube multiplies as in dense attention; its keys come from the vector cores, which gather them, widen what
is quantised, make weights of scores and sum weighted values. A tile is 64 heads of a token.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kaas.kernel_library.attention.attention_cube import attention_cube
from kaas.kernel_library.attention.attention_softmax import attention_softmax
from kaas.kernel_library.attention.attention_tiles import CHUNK, WEIGHT_SLOTS, AttentionTiles
from kaas.kernel_library.attention.gathered_keys import KeySet, gathered_keys
from kaas.kernel_library.attention.kv_records import KV_RECORD_SOURCES
from kaas.kernel_library.attention.row_views import FlatRows
from kaas.kernel_library.cube.cube_pipeline import VECTOR_LANES, Rings
from kaas.kernel_library.entry import Entry

SPARSE_ATTENTION_SOURCES = (
    *KV_RECORD_SOURCES,
    "kaas.kernel_library.attention.attention_cube",
    "kaas.kernel_library.attention.attention_softmax",
    "kaas.kernel_library.attention.attention_tiles",
    "kaas.kernel_library.attention.finished_rows",
    "kaas.kernel_library.attention.gathered_keys",
    "kaas.kernel_library.attention.row_views",
    "kaas.kernel_library.attention.sparse_program",
    "kaas.kernel_library.attention.sparse_tiles",
    "kaas.kernel_library.choice",
    "kaas.kernel_library.cube.cube_pipeline",
    "kaas.kernel_library.cube.gemm_fields",
    "kaas.kernel_library.cube.gemm_tiles",
    "kaas.kernel_library.entry",
)
"""Modules that decide what this program is."""

SINK_EVENT = 7
"""Of MTE2 and V, behind those of gathered keys."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One tile: a token of queries, ``head`` the first of its 64 heads, and its keys by set."""

    call: Any
    token: Any
    head: Any
    blocks: tuple[Any, ...]
    lengths: tuple[Any, ...]


def sparse_program(
    entry: Entry,
    tiles: AttentionTiles,
    cores: int,
    *,
    tokens: Any,
    heads: int,
    sets: Sequence[KeySet],
    length_row: Callable[[Any], Any],
    store_rows: Callable[[Rings, Any, Place, Any], Any],
    lse_pitch: int,
    with_sink: bool,
    with_maxima: bool,
) -> Any:
    """The TileLang function.

    The call has ``q`` and ``out``, [..., heads, width], and the parameters that ``sets`` name, with a row of
    indices per token, ``tokens`` rows. ``length_row(token)`` is the element of the lengths that belongs to a
    token. ``with_sink``: ``attn_sink`` [heads] is one more score per head that weighs no value.
    ``store_rows(state, call, place, head)`` stores ``state.lse_ub`` of this core's rows, the first of which
    is ``head``, and ``state.maxima`` [rows/2] if ``with_maxima``, on MTE3 only.
    """
    import tilelang.ascend.language as T

    rows, half, d_v, keys = tiles.rows, tiles.rows // 2, tiles.d_v, tiles.keys
    passes = heads // rows
    gathered = gathered_keys(tiles, sets, tokens)

    @T.macro
    def load_query(place: Any, q_l1: Any) -> None:
        first = place.token * heads + place.head
        T.copy(FlatRows(place.call.q, tokens * heads)[first : first + rows, 0 : tiles.d_qk], q_l1)

    @T.macro
    def load_keys(rings: Any, place: Any, block: Any) -> None:
        gathered.await_keys()

    @T.macro
    def store(state: Any, call: Any, place: Any) -> None:
        head = place.head + state.vector_core * half
        first = place.token * heads + head
        T.copy(
            state.result_ub[0:half, 0:d_v],
            FlatRows(call.out, tokens * heads)[first : first + half, 0:d_v],
        )
        store_rows(state, call, place, head)

    @T.macro
    def finish(state: Any, place: Any) -> None:
        """Sums become outputs; rows that see no key have output 0, maximum -inf and log-sum-exp +inf."""
        with T.SimdVF():
            for row_16 in T.serial(T.uint16(half)):
                row = T.cast(row_16, "int32")
                total = T.simd.vld(state.total[row], dist="BRC_B32")
                largest = T.simd.vld(state.largest[row], dist="BRC_B32")
                none = T.simd.vcmps(total, T.float32(0.0), op="eq")
                zero = T.simd.vdup(T.float32(0.0), "float32")
                infinity = T.simd.vdup(T.float32(float("inf")), "float32")
                whole = total
                if with_sink:
                    at = place.head + state.vector_core * half + row
                    sink = T.simd.vld(state.sinks[at], dist="BRC_B32")
                    whole = T.simd.vadd(total, T.simd.vexpdif(sink, largest))
                inverse = T.simd.vdiv(T.simd.vdup(T.float32(1.0), "float32"), whole)
                for i in T.unroll(d_v // VECTOR_LANES, explicit=True):
                    at = row * d_v + i * VECTOR_LANES
                    value = T.simd.vmul(T.simd.vld(state.values_ub[at]), inverse)
                    narrow = T.simd.vcvt(T.simd.vsel(zero, value, none), "bfloat16", sat=False, part=0)
                    T.simd.vsts(state.result[at], narrow, dist="PK_B32")
                lse = T.simd.vsel(infinity, T.simd.vadd(largest, T.simd.vln(total)), none)
                T.simd.vsts(state.lse[row * lse_pitch], lse, dist="ONEPT_B32")
                if with_maxima:
                    maximum = T.simd.vsel(T.simd.vneg(infinity), largest, none)
                    T.simd.vsts(state.maxima[row], maximum, dist="ONEPT_B32")

    cube = attention_cube(tiles, load_query=load_query, load_keys=load_keys, release_keys=gathered.release)
    softmax = attention_softmax(
        tiles,
        store=store,
        lse_pitch=lse_pitch,
        sees=gathered.sees,
        ahead=gathered.ahead,
        finish_rows=finish,
    )

    @T.macro
    def counted(call: Any, token: Any, one: KeySet) -> Any:
        """How many indices of a token's row count."""
        if one.lengths is None:
            length = T.int32(one.topk)
        else:
            length = T.max(T.min(getattr(call, one.lengths)[length_row(token)], one.topk), 0)
        return length

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        turns = T.alloc_var("int32")
        token = T.alloc_var("int32")
        head = T.alloc_var("int32")
        length = T.alloc_var("int32")
        extra_length = T.alloc_var("int32")
        blocks = T.alloc_var("int32")
        extra_blocks = T.alloc_var("int32")
        # Kept in a variable: TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(tokens * passes + cores - 1 - core, cores)
        for turn in T.serial(turns):
            token = T.truncdiv(turn * cores + core, passes)
            head = T.truncmod(turn * cores + core, passes) * rows
            length = counted(call, token, sets[0])
            blocks = T.truncdiv(length + keys - 1, keys)
            if len(sets) == 1:
                place = Place(call=call, token=token, head=head, blocks=(blocks,), lengths=(length,))
                visit(place, blocks)
            else:
                extra_length = counted(call, token, sets[1])
                extra_blocks = T.truncdiv(extra_length + keys - 1, keys)
                place = Place(
                    call=call,
                    token=token,
                    head=head,
                    blocks=(blocks, extra_blocks),
                    lengths=(length, extra_length),
                )
                visit(place, blocks + extra_blocks)

    @T.macro
    def cube_side(call: Any, core: Any, accumulator_ub: Any, weights_l1: Any, k_l1: Any) -> None:
        rings = Rings()
        rings.keep(k_l1=k_l1)
        gathered.open_cube()
        cube.open(rings, accumulator_ub, weights_l1)
        walk(call, core, cube.visitor(rings))
        cube.close()

    @T.macro
    def open_rows(state: Any, call: Any) -> None:
        """What is kept per row beside the sums."""
        if with_maxima:
            maxima = T.alloc_shared((half,), "float32")
            state.keep(maxima=maxima)
        if with_sink:
            sinks = T.alloc_shared((heads,), "float32")
            state.keep(sinks=sinks)
            T.copy(call.attn_sink[0:heads], sinks[0:heads])
            T.ascend_set_flag("MTE2_V", SINK_EVENT)
            T.ascend_wait_flag("MTE2_V", SINK_EVENT)

    @T.macro
    def vector_side(
        call: Any, core: Any, vector_core: Any, accumulator_ub: Any, weights_l1: Any, k_l1: Any
    ) -> None:
        state = softmax.open(accumulator_ub, weights_l1, vector_core)
        gathered.open(state, k_l1)
        open_rows(state, call)
        walk(call, core, softmax.visitor(state, call))
        softmax.close()
        gathered.close()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            accumulator_ub = T.alloc_shared((tiles.accumulator_slots, half, CHUNK), "float32")
            weights_l1 = T.alloc_l1((WEIGHT_SLOTS, rows, keys), "bfloat16")
            k_l1 = T.alloc_l1((tiles.key_slots, keys, tiles.d_qk), "bfloat16")
            with T.Cube():
                cube_side(call, core, accumulator_ub, weights_l1, k_l1)
            with T.Vector() as vector_core:
                vector_side(call, core, vector_core, accumulator_ub, weights_l1, k_l1)

    return entry.prim_func(block)
