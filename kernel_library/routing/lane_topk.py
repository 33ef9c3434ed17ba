"""Lane top-k: the k largest of a row that lies in a few vector registers, in order, ties to the lower index.

Rows are ranked by 32-bit integer keys. A key orders floats as ``torch.sort`` does: NaN above everything, the
two zeros equal, minus infinity below every number. Below that is the key of what does not take part, so that
a row of minus infinities still has k different winners.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from typing import Any, Literal

from kaas.kernel_library.vector.row_plan import VECTOR_LANES

LANE_TOPK_SOURCE = "kaas.kernel_library.routing.lane_topk"
"""For ``Family.sources`` of a family that uses this module."""

IndexDtype = Literal["int64", "int32"]
INDEX_DTYPES: tuple[IndexDtype, ...] = ("int64", "int32")
MAX_TOPK = 32
"""Winners of a row: as int64 they fill one vector register."""
NO_KEY = -(2**31)
"""The key of padding and of winners that are already out."""
LARGEST = 2**31 - 1


def ranking_keys() -> Any:
    """A macro from 64 fp32 values to their int32 keys."""
    import tilelang.ascend.language as T

    @T.macro
    def run(values: Any) -> Any:
        bits = T.reinterpret(values, "int32x64")
        # Negative floats grow with their bits the wrong way round.
        flips = T.simd.vand(T.simd.vshrs(bits, 31), T.simd.vdup(LARGEST, "int32"))
        ordered = T.simd.vxor(bits, flips)
        is_minus_zero = T.simd.vcmps(ordered, -1, op="eq")
        keys = T.simd.vsel(T.simd.vdup(0, "int32"), ordered, is_minus_zero)
        return T.simd.vsel(T.simd.vdup(LARGEST, "int32"), keys, T.simd.vcmp(values, values, op="ne"))

    return run


def lane_indices(vector: Any) -> Any:
    """int32 positions in the row of the 64 lanes of its ``vector``-th register."""
    import tilelang.ascend.language as T

    return T.simd.vci(T.cast(vector * VECTOR_LANES, "int32"), "int32")


def without_padding(keys: Any, elements: int) -> Any:
    """``keys`` of a row's last register, the lanes behind its ``elements`` out of the race."""
    import tilelang.ascend.language as T

    if elements % VECTOR_LANES == 0:
        return keys
    inside = T.simd.vcmps(T.simd.vci(T.int32(0), "int32"), elements % VECTOR_LANES, op="lt")
    return T.simd.vsel(keys, T.simd.vdup(NO_KEY, "int32"), inside)


def top_k(vectors: int, count: int) -> Any:
    """A macro of ``keys``, a register array of ``vectors`` int32 vectors, which it uses up.

    It returns an int32 register: lane j is the index of the j-th largest for j < ``count``, else -1.
    """
    import tilelang.ascend.language as T

    @T.macro
    def run(keys: Any) -> Any:
        chosen = T.simd.alloc_var("int32")
        best = T.simd.alloc_var("int32")
        first = T.simd.alloc_var("int32")
        chosen = T.simd.vdup(-1, "int32")
        for turn in T.serial(T.uint16(count)):
            best = keys[0]
            for i in T.unroll(1, vectors, explicit=True):
                best = T.simd.vmax(best, keys[i])
            largest = T.simd.vdupv(T.simd.vcmax(best))
            first = T.simd.vdup(LARGEST, "int32")
            for i in T.unroll(vectors, explicit=True):
                tied = T.simd.vcmp(keys[i], largest, op="eq")
                first = T.simd.vmin(first, T.simd.vsel(lane_indices(i), T.simd.vdup(LARGEST, "int32"), tied))
            winner = T.simd.vdupv(T.simd.vcmin(first))
            for i in T.unroll(vectors, explicit=True):
                won = T.simd.vcmp(lane_indices(i), winner, op="eq")
                keys[i] = T.simd.vsel(T.simd.vdup(NO_KEY, "int32"), keys[i], won)
            here = T.simd.vcmps(T.simd.vci(T.int32(0), "int32"), T.cast(turn, "int32"), op="eq")
            chosen = T.simd.vsel(winner, chosen, here)
        return chosen

    return run


def index_words(count: int, dtype: str) -> int:
    """32-bit words of a row of ``count`` indices of ``dtype`` (int32 or int64)."""
    return count * (2 if dtype == "int64" else 1)


def index_pitch(count: int, dtype: str) -> int:
    """The same in UB, where rows begin at 32-byte boundaries."""
    return -(-index_words(count, dtype) // 8) * 8


def store_indices(buffer: Any, indices: Any, count: int, dtype: str, *at: Any) -> Any:
    """The first ``count`` lanes as a row of ``dtype`` at ``buffer[at]``, an int32 UB buffer."""
    import tilelang.ascend.language as T

    words = index_words(count, dtype)
    if dtype == "int64":
        indices, _ = T.simd.vintlv(indices, T.simd.vshrs(indices, 31))
    return T.simd.vsts(buffer[at], indices, T.simd.update_mask(T.uint32(words), 32))


def load_indices(buffer: Any, count: int, elements: int, dtype: str, *at: Any) -> Any:
    """A row that :func:`store_indices` wrote, as int32: what names none of the ``elements`` is -1.

    Of an int64 only the low word is looked at.
    """
    import tilelang.ascend.language as T

    lanes = T.simd.vci(T.int32(0), "int32")
    inside = T.simd.vcmps(lanes, count, op="lt")
    places = T.reinterpret(T.simd.vmuls(lanes, index_words(1, dtype)), "uint32x64")
    given = T.simd.vgather2(buffer[at], places, inside)
    # As unsigned numbers, negative ones lie behind all elements.
    is_known = T.simd.vcmps(T.reinterpret(given, "uint32x64"), T.uint32(elements), inside, op="lt")
    return T.simd.vsel(given, T.simd.vdup(-1, "int32"), is_known)


def sum_in_order(count: int) -> Any:
    """A macro ``(start, values)``: start + lane 0 + lane 1 + ... + lane ``count`` - 1, in every lane."""
    import tilelang.ascend.language as T

    @T.macro
    def run(start: Any, values: Any) -> Any:
        total = T.simd.alloc_var("float32")
        total = T.simd.vdup(start, "float32")
        for k in T.serial(T.uint16(count)):
            total = T.simd.vadd(total, T.simd.vselr(values, T.simd.vdup(T.cast(k, "int32"), "int32")))
        return total

    return run
