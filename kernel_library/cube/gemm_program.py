"""GEMM program: a matrix product as a TileLang function, its result stored plainly or through the vectors."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang programs below are a language of their own: their annotations are buffers, not types.

from typing import TYPE_CHECKING, Any

from kaas.kernel_library.cube.cube_pipeline import (
    Rings,
    VectorEpilogue,
    cube_pipeline,
    operand_copies,
    tile_origin,
    tile_walk,
    vector_epilogue,
)
from kaas.kernel_library.cube.gemm_tiles import GemmTiles
from kaas.kernel_library.cube.quantised_epilogue import quantised_epilogue
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.spec import DTYPE_BYTES, DYNAMIC
from kaas.proto.dtypes import ELEMENT_TYPES

if TYPE_CHECKING:
    from kaas.kernel_library.families.gemm import GemmSpec


def _epilogue(spec: "GemmSpec", tiles: GemmTiles, columns: Any) -> VectorEpilogue:
    if spec.dtype_d == "e4m3":
        return quantised_epilogue(tiles, columns, factor=1.0, with_alpha=spec.alpha)
    dtype_d = ELEMENT_TYPES[spec.dtype_d].tilelang
    return vector_epilogue(tiles, dtype_d, with_alpha=spec.alpha, accumulate=spec.accumulate)


def gemm_program(spec: "GemmSpec", tiles: GemmTiles, cores: int) -> Any:
    """The TileLang function of ``spec`` on ``cores`` cube cores: parts of the pipeline, joined in order."""
    import tilelang.ascend.language as T

    from kaas.kernel_library.families.gemm import parameters, uses_vector_epilogue

    dtype, dtype_d = (ELEMENT_TYPES[name].tilelang for name in (spec.dtype_a, spec.dtype_d))
    entry = Entry("gemm", parameters(spec))
    m, n, k = (
        entry.extent(name if extent == DYNAMIC else extent)
        for name, extent in zip("mnk", (spec.m, spec.n, spec.k), strict=True)
    )
    bm, bn, bk, l0c_stages = tiles.block_m, tiles.block_n, tiles.block_k, tiles.l0c_stages
    m_tiles, n_tiles = T.ceildiv(m, bm), T.ceildiv(n, bn)
    # A dynamic K of zero still runs one step over zero-filled L1, so that D becomes zero.
    k_steps = T.max(T.ceildiv(k, bk), 1) if spec.k == DYNAMIC else -(-k // bk)
    input_bytes = DTYPE_BYTES[spec.dtype_a]
    a_copies = operand_copies(tiles, bm, input_bytes, k_major=spec.layout[0] == "t")
    b_copies = operand_copies(tiles, bn, input_bytes, k_major=spec.layout[1] == "n")
    through_vectors = uses_vector_epilogue(spec)

    walk = tile_walk(m_tiles, n_tiles, tiles.window_m, cores)
    row_of, col_of = tile_origin(spec.m), tile_origin(spec.n)

    @T.macro
    def load(rings: Any, where: Any, step: Any) -> None:
        a, b, row, col = where
        a_copies.load(a, rings.a_l1[rings.l1_slot(), :, :], row, step * bk)
        b_copies.load(b, rings.b_l1[rings.l1_slot(), :, :], col, step * bk)

    @T.macro
    def feed(rings: Any, part: Any) -> None:
        a_copies.feed(rings.a_l1, rings.l1_slot(), rings.a_l0[rings.l0_slot(), :, :], part)
        b_copies.feed(rings.b_l1, rings.l1_slot(), rings.b_l0[rings.l0_slot(), :, :], part)

    @T.macro
    def multiply(rings: Any, accumulator: Any, clear: Any) -> None:
        T.gemm(
            rings.a_l0[rings.l0_slot(), :, :],
            rings.b_l0[rings.l0_slot(), :, :],
            accumulator,
            transpose_B=True,
            clear_accum=clear,
        )

    pipeline = cube_pipeline(
        tiles,
        dtype_a=dtype,
        dtype_b=dtype,
        a_l1_tile=a_copies.l1_tile,
        b_l1_tile=b_copies.l1_tile,
        load=load,
        feed=feed,
        multiply=multiply,
    )
    epilogue = _epilogue(spec, tiles, n)

    @T.macro
    def cube_side(call: Any, core: Any, accumulator_ub: Any) -> None:
        rings = Rings()
        pipeline.open(rings)
        if spec.accumulate and not through_vectors:
            T.set_atomic("add", dtype_d)
        turns = walk.turns_of(core)
        for turn in T.serial(turns):
            tile_row, tile_col = walk.place_of(turn * cores + core)
            row = row_of(tile_row, m_tiles, bm)
            col = col_of(tile_col, n_tiles, bn)
            pipeline.product(rings, turn, (call.a, call.b, row, col), k_steps)
            if through_vectors:
                epilogue.hand_over(rings, turn, accumulator_ub)
            else:
                T.copy(rings.l0c[turn % l0c_stages, :, :], call.d[row : row + bm, col : col + bn])
            pipeline.released(turn)
        pipeline.close()
        if through_vectors:
            epilogue.close_cube()

    @T.macro
    def vector_side(call: Any, core: Any, vector_core: Any, accumulator_ub: Any) -> None:
        state = epilogue.open(accumulator_ub)
        turns = walk.turns_of(core)
        for turn in T.serial(turns):
            tile_row, tile_col = walk.place_of(turn * cores + core)
            row = row_of(tile_row, m_tiles, bm) + vector_core * (bm // 2)
            col = col_of(tile_col, n_tiles, bn)
            d = (call.d, call.sfd) if spec.dtype_d == "e4m3" else call.d
            epilogue.finish(state, turn, d, row, col, call.alpha)
        epilogue.close()

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            if through_vectors:
                accumulator_ub = T.alloc_shared((l0c_stages, bm // 2, bn), "float32")
                with T.Cube():
                    cube_side(call, core, accumulator_ub)
                with T.Vector() as vector_core:
                    vector_side(call, core, vector_core, accumulator_ub)
            else:
                cube_side(call, core, None)

    return entry.prim_func(block)
