"""Token lanes: vector kernels on a few fp32 values per token, with 64 tokens side by side in a register.

A token's values lie in memory one behind the other; a register holds one of them for 64 tokens, fetched by a
gather and written by a scatter. Sums over a token's values are then plain additions of registers in a
written order, and tokens meet only where a kernel sums over them: then over the 64 tokens of a block, so that
nothing depends on how blocks are shared out.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kaas.kernel_library.entry import Entry, looked_at, ring_rows
from kaas.kernel_library.spec import DYNAMIC
from kaas.kernel_library.vector.row_pipeline import ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import NOMINAL_ROWS, VECTOR_LANES, RowPlan, padded, plan_rows
from kaas.proto.extents import Extent, divided
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

TOKEN_LANE_SOURCES = (*ROW_KERNEL_SOURCES, "kaas.kernel_library.vector.token_lanes")
"""Modules that decide what a family built on token lanes generates."""


class LaneTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of ``values`` fp32 values per token, or per block of 64 tokens.

    With ``copies`` it has so many planes of all tokens, one behind the other.
    """

    name: str
    values: int
    written: bool = False
    per_block: bool = False
    copies: int = 1


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of ``values`` fp32 values that every token uses; it stays in UB."""

    name: str
    values: int


def plan_token_blocks(
    target: Target,
    tensors: Sequence[LaneTensor],
    constants: Sequence[Constant] = (),
    *,
    tokens: int | str,
    scratch_bytes: int = 0,
    passes: float = 4.0,
    what: str = "a block of 64 tokens",
    field: str = "streams",
) -> RowPlan:
    """The plan of blocks of 64 tokens; what a plan calls a row is a block here.

    ``scratch_bytes`` of UB stay outside the ring. Raises :class:`DoesNotFit` naming ``field``.
    """
    count = NOMINAL_ROWS if tokens == DYNAMIC else int(tokens)
    return plan_rows(
        target,
        row_bytes=sum(4 * _ub_values(tensor) * tensor.copies + 32 * tensor.per_block for tensor in tensors),
        fixed_bytes=scratch_bytes + sum(4 * padded(constant.values) for constant in constants),
        rows=-(-count // VECTOR_LANES),
        passes=passes,
        what=what,
        field=field,
    )


def token_extent(tokens: int | str) -> Extent:
    """The extent of a spec's ``tokens`` in a parameter's shape."""
    return "tokens" if tokens == DYNAMIC else tokens


def block_extent(tokens: int | str) -> Extent:
    """How many blocks of 64 tokens there are, in a parameter's shape."""
    return divided(token_extent(tokens), VECTOR_LANES)


class Lanes:
    """One block of 64 tokens inside a vector function."""

    def __init__(self, ub: dict[str, tuple[LaneTensor, Any]], at: tuple[Any, Any], more: Any) -> None:
        self._ub = ub
        self._slot, self._block = at
        self._offsets, self.mask, self._constants, self.scratch = more

    def get(self, name: str, value: Any, copy: Any = 0) -> Any:
        """Value ``value`` of each token in plane ``copy``; 0 in lanes without a token."""
        import tilelang.ascend.language as T

        tensor, buffer = self._ub[name]
        at = self._block * (VECTOR_LANES * tensor.values) + value
        if tensor.copies > 1:
            at = at + copy * (int(buffer.shape[1]) // tensor.copies)
        return T.simd.vgather2(buffer[self._slot, at], self._offsets[tensor.values], self.mask)

    def put(self, name: str, value: Any, register: Any) -> Any:
        """Store value ``value`` of each token; a statement of a macro."""
        import tilelang.ascend.language as T

        tensor, buffer = self._ub[name]
        at = self._block * (VECTOR_LANES * tensor.values) + value
        return T.simd.vscatter(register, buffer[self._slot, at], self._offsets[tensor.values], self.mask)

    def put_sum(self, name: str, value: int, register: Any) -> Any:
        """Store the sum over the block's tokens; a statement of a macro."""
        import tilelang.ascend.language as T

        tensor, buffer = self._ub[name]
        total = T.simd.vcadd(register, self.mask)
        return T.simd.vsts(
            buffer[self._slot, self._block * _ub_values(tensor) + value], total, dist="ONEPT_B32"
        )

    def constant(self, name: str, value: int) -> Any:
        """Value ``value`` of a constant, in every lane."""
        import tilelang.ascend.language as T

        return T.simd.vld(self._constants[name][value], dist="BRC_B32")


def lane_program(
    name: str,
    parameters: Sequence[Parameter],
    plan: RowPlan,
    cores: int,
    tokens: Extent,
    tensors: Sequence[LaneTensor],
    compute: Callable[[Lanes], Any],
    constants: Sequence[Constant] = (),
    scratch: int = 0,
) -> Any:
    """The TileLang function that takes every block of 64 tokens through the macro ``compute``.

    ``scratch`` fp32 values of UB are at its disposal while it works on a block.
    """
    import tilelang.ascend.language as T

    entry = Entry(name, parameters)
    count_of_tokens = entry.extent(tokens)
    blocks = entry.extent(divided(tokens, VECTOR_LANES))
    widths = sorted({tensor.values for tensor in tensors if not tensor.per_block})

    def rows(tensor: LaneTensor, buffer: Any) -> Any:
        count = blocks if tensor.per_block else count_of_tokens
        return looked_at(buffer, (tensor.copies, count, tensor.values))

    @T.macro
    def move(tensor: Any, buffer: Any, ub: Any, at: Any) -> None:
        slot, first, count = at
        start = T.alloc_var("int32")
        length = T.alloc_var("int32")
        if tensor.per_block:
            start = first
            length = count
        else:
            start = first * VECTOR_LANES
            length = T.min(count * VECTOR_LANES, count_of_tokens - first * VECTOR_LANES)
        values = tensor.values
        if tensor.written:
            T.copy(
                ring_rows(ub, values)[slot, 0:length, 0:values],
                rows(tensor, buffer)[0, start : start + length, 0:values],
            )
        else:
            for copy in T.serial(tensor.copies):
                plane = copy * (plan.rows * (_ub_values(tensor) // values))
                T.copy(
                    rows(tensor, buffer)[copy, start : start + length, 0:values],
                    ring_rows(ub, values)[slot, plane : plane + length, 0:values],
                )

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, ub, _ = state
        for tensor in tensors:
            if not tensor.written:
                move(tensor, getattr(call, tensor.name), ub[tensor.name][1], (slot, first, count))

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, ub, _ = state
        for tensor in tensors:
            if tensor.written:
                move(tensor, getattr(call, tensor.name), ub[tensor.name][1], (slot, first, count))

    @T.macro
    def compute_blocks(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, ub, (constants_ub, scratch_ub) = state
        with T.SimdVF():
            offsets = {width: lane_offsets(width) for width in widths}
            for turn in T.serial(T.cast(count, "uint16")):
                block = T.cast(turn, "int32")
                left = T.min(count_of_tokens - (first + block) * VECTOR_LANES, VECTOR_LANES)
                mask = T.simd.update_mask(T.cast(left, "uint32"), 32)
                compute(Lanes(ub, (slot, block), (offsets, mask, constants_ub, scratch_ub)))

    @T.macro
    def load_constants(state: Any) -> None:
        call, _, (constants_ub, _) = state
        for constant in constants:
            T.copy(
                getattr(call, constant.name)[0 : constant.values],
                constants_ub[constant.name][0 : constant.values],
            )

    run = row_pipeline(
        plan,
        cores,
        blocks,
        load=load,
        compute=compute_blocks,
        store=store,
        prepare=load_constants if constants else None,
    )

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            ub = {
                tensor.name: (
                    tensor,
                    T.alloc_shared(
                        (plan.stages, padded(plan.rows * _ub_values(tensor) * tensor.copies, 8)), "float32"
                    ),
                )
                for tensor in tensors
            }
            constants_ub = {
                constant.name: T.alloc_shared((padded(constant.values),), "float32") for constant in constants
            }
            scratch_ub = T.alloc_shared((scratch,), "float32") if scratch else None
            run((call, ub, (constants_ub, scratch_ub)), core)

    return entry.prim_func(block)


def _ub_values(tensor: LaneTensor) -> int:
    """UB values per block. A stage is rounded up to the 32 bytes that a transfer starts at."""
    return tensor.values if tensor.per_block else tensor.values * VECTOR_LANES


def lane_offsets(values: int) -> Any:
    """The offset of each lane's token in a buffer with ``values`` per token."""
    import tilelang.ascend.language as T

    return T.reinterpret(T.simd.vmuls(T.simd.vci(T.int32(0), "int32"), T.int32(values)), "uint32x64")


def summed(terms: Sequence[Any]) -> Any:
    """The sum of registers in their order."""
    import tilelang.ascend.language as T

    total = terms[0]
    for term in terms[1:]:
        total = T.simd.vadd(total, term)
    return total


def sigmoid(value: Any) -> Any:
    """1 / (1 + exp(-value)); exactly 0 and 1 far out, NaN for NaN."""
    import tilelang.ascend.language as T

    one = T.simd.vdup(1.0, "float32")
    return T.simd.vdiv(one, T.simd.vadds(T.simd.vexp(T.simd.vneg(value)), 1.0))


def reciprocal_rms(square_sum: Any, width: int, eps: float) -> Any:
    """1 / sqrt(square_sum / width + eps)."""
    import tilelang.ascend.language as T

    mean = T.simd.vmuls(square_sum, 1.0 / width)
    return T.simd.vdiv(T.simd.vdup(1.0, "float32"), T.simd.vsqrt(T.simd.vadds(mean, eps)))
