"""randn: values of the standard normal distribution, each made from the seed and its own place."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Any

from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DTYPE_BYTES,
    DYNAMIC,
    Dim,
    Dtype,
    KernelSpec,
    require_dim,
    require_one_of,
)
from kaas.kernel_library.vector.normal_values import NORMAL_VALUE_SOURCE, normal_value
from kaas.kernel_library.vector.random_words import RANDOM_WORD_SOURCE, random_words
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS, ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan, RowTile, plan_rows, require_row_tile
from kaas.kernel_library.vector.wide_values import TILELANG_DTYPE, WIDE_VALUE_SOURCE, store_wide
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

RANDN_DTYPES: tuple[Dtype, ...] = ("fp32", "bf16", "fp16")
BLOCK = 2 * VECTOR_LANES
"""Values that 64 counters make."""


class RandnSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="randn"):
    """Independent values with mean 0 and variance 1, on the vector cores.

    Arguments in call order: out[elements] of ``dtype``; the int64 scalar seed.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    dtype: Dtype = "fp32"
    elements: Dim = "dynamic"
    tile: RowTile | None = None

    def __post_init__(self) -> None:
        require_one_of(self.dtype, "dtype", RANDN_DTYPES)
        require_dim(self.elements, "elements")
        require_row_tile(self.tile)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if the spec's own tile does not fit ``target``'s UB."""
        plan_of(self, target)


def plan_of(spec: RandnSpec, target: Target) -> RowPlan:
    """The plan of blocks of 128 values."""
    return plan_rows(
        target,
        row_bytes=BLOCK * DTYPE_BYTES[spec.dtype],
        rows=None if spec.elements == DYNAMIC else -(-int(spec.elements) // BLOCK),
        passes=150.0 / DTYPE_BYTES[spec.dtype],
        what=f"a block of {BLOCK} values",
        field="tile",
        given=spec.tile,
    )


def build(spec: RandnSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s vector cores."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def parameters(spec: RandnSpec) -> tuple[Parameter, ...]:
    """What a call takes: the values and the seed."""
    elements: Extent = "elements" if spec.elements == DYNAMIC else spec.elements
    return (
        Parameter(name="out", role="out", dtype=spec.dtype, shape=(elements,)),
        Parameter(name="seed", role="scalar", dtype="int64"),
    )


def _program(spec: RandnSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``: lane j of block b counts 64 b + j."""
    import tilelang.ascend.language as T

    entry = Entry("randn", parameters(spec))
    elements = entry.extent("elements" if spec.elements == DYNAMIC else spec.elements)
    draw, normal = random_words(), normal_value()

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        pass

    @T.macro
    def make(out_ub: Any, slot: Any, first: Any, count: Any, low: Any, high: Any) -> None:
        with T.SimdVF():
            words = T.simd.alloc_local((2,), "uint32")
            for block in T.serial(T.cast(count, "uint16")):
                counters = T.simd.vci((first + T.cast(block, "int32")) * VECTOR_LANES, "int32")
                words[0] = T.reinterpret(counters, "uint32x64")
                draw(words, low, high)
                at = T.cast(block, "int32") * BLOCK
                store_wide(spec.dtype, out_ub, normal(words[0]), slot, at)
                store_wide(spec.dtype, out_ub, normal(words[1]), slot, at + VECTOR_LANES)

    @T.macro
    def compute(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, out_ub = state
        low = T.alloc_var("uint32")
        high = T.alloc_var("uint32")
        low = T.cast(call.seed, "uint32")
        high = T.cast(T.shift_right(call.seed, T.int64(32)), "uint32")
        make(out_ub, slot, first, count, low, high)

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, out_ub = state
        begin = T.alloc_var("int32")
        held = T.alloc_var("int32")
        begin = first * BLOCK
        held = T.min(count * BLOCK, elements - first * BLOCK)
        T.copy(out_ub[slot, 0:held], call.out[begin : begin + held])

    # Written so that the largest number of elements does not overflow.
    blocks = T.truncdiv(elements - 1, BLOCK) + 1
    run = row_pipeline(plan, cores, blocks, load=load, compute=compute, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            out_ub = T.alloc_shared((plan.stages, plan.rows * BLOCK), TILELANG_DTYPE[spec.dtype])
            run((call, out_ub), core)

    return entry.prim_func(block)


FAMILY = Family(
    name="randn",
    summary="random values of the standard normal distribution",
    spec_type=RandnSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*ROW_KERNEL_SOURCES, NORMAL_VALUE_SOURCE, RANDOM_WORD_SOURCE, WIDE_VALUE_SOURCE),
    page=KernelPage(
        computes=(
            "`out[i]` is a function of `seed` and i alone, the same on any number of cores and in any shape. "
            "Element 128 b + j, j < 64, is made of the first and element 128 b + 64 + j of the second of "
            "the two 32-bit words that Threefry-2x32 (20 rounds) makes of counter (64 b + j, 0) and key (low "
            "word of `seed`, high word). The highest bit of a word is the sign; m, the other bits, gives\n\n"
            "    |out| = the z that a standard normal variable exceeds with probability (m + 1/2) / 2^32\n\n"
            "so that no value lies beyond 6.4. Different seeds give independent streams; the same seed gives "
            "the same values again, with the first elements of a longer tensor."
        ),
        arguments={
            "out": "the values; a tensor of any shape is passed as its elements",
            "seed": "any int64; a new one for every call",
        },
        tolerance="2^-18 absolute in fp32, then one rounding to the dtype",
        facts=(
            "Butterfingrz/TileKernels on github.com: tile_kernels/rand/randn_asc.py (arguments; its stream "
            "is that of TileLang's generator, this one is another)",
            "Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (Threefry)",
        ),
        serves=("tile_kernels.rand.randn", "tile_kernels.rand.randn_like"),
        examples=(RandnSpec(), RandnSpec(dtype="bf16")),
    ),
)
