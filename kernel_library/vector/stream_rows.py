"""Stream rows: vector kernels on the residual streams of a token, bf16 in memory and fp32 in registers.

A token's streams lie one behind the other in a row of UB; its mixes, a few fp32 values, are broadcast to
registers. Sums over streams are written out in ascending order; sums over a stream add vectors of 64 in
ascending order and then the 64 lanes, so that no result depends on how tokens are shared out.
"""

# mypy: disable-error-code="untyped-decorator"
# The TileLang macros below are a language of their own: what they annotate and call are no Python types.

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kaas.kernel_library.entry import Entry, looked_at, ring_rows
from kaas.kernel_library.spec import DYNAMIC
from kaas.kernel_library.vector.row_pipeline import ROW_KERNEL_SOURCES, row_pipeline
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan, padded, plan_rows
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

STREAM_ROW_SOURCES = (
    *ROW_KERNEL_SOURCES,
    "kaas.kernel_library.vector.mhc_fields",
    "kaas.kernel_library.vector.stream_rows",
)
"""Modules that decide what a family built on stream rows generates."""


class StreamTensor(msgspec.Struct, frozen=True, kw_only=True):
    """``streams`` bf16 rows per token. ``place`` names a tensor whose UB it takes over when it is stored."""

    name: str
    streams: int
    read: bool = False
    written: bool = False
    place: str = ""


class MixTensor(msgspec.Struct, frozen=True, kw_only=True):
    """``values`` fp32 values per token."""

    name: str
    values: int
    read: bool = False
    written: bool = False


def plan_streams(
    target: Target,
    tensors: Sequence[StreamTensor | MixTensor],
    *,
    hidden: int,
    tokens: int | str,
    passes: float = 2.0,
) -> RowPlan:
    """The plan of tokens with all their tensors; raises :class:`DoesNotFit` naming ``hidden``."""
    streams = sum(one.streams for one in tensors if isinstance(one, StreamTensor) and not one.place)
    mixes = sum(padded(one.values, 8) for one in tensors if isinstance(one, MixTensor))
    return plan_rows(
        target,
        row_bytes=2 * streams * hidden + 4 * mixes,
        rows=None if tokens == DYNAMIC else int(tokens),
        passes=passes,
        what=f"a token with {streams} rows of {hidden} bf16",
    )


class StreamRow:
    """One token inside a vector function."""

    def __init__(self, ub: dict[str, Any], slot: Any, row: Any, hidden: int) -> None:
        self._ub, self._slot, self._row, self._hidden = ub, slot, row, hidden

    def get(self, name: str, stream: int, vector: Any) -> Any:
        """64 values of a stream as fp32."""
        import tilelang.ascend.language as T

        at = vector * VECTOR_LANES + stream * self._hidden
        packed = T.simd.vld(self._ub[name][self._slot, self._row, at], dist="UNPK_B16")
        return T.simd.vcvt(packed, "float32", part=0)

    def put(self, name: str, stream: int, vector: Any, value: Any) -> Any:
        """Store 64 fp32 values of a stream, rounded to bf16 without saturation; a statement of a macro."""
        import tilelang.ascend.language as T

        at = vector * VECTOR_LANES + stream * self._hidden
        packed = T.simd.vcvt(value, "bfloat16", sat=False, part=0)
        return T.simd.vsts(self._ub[name][self._slot, self._row, at], packed, dist="PK_B32")

    def mix(self, name: str, value: int, values: int) -> Any:
        """Value ``value`` of ``values`` mixes, in every lane."""
        import tilelang.ascend.language as T

        return T.simd.vld(self._ub[name][self._slot, self._row * values + value], dist="BRC_B32")

    def put_sum(self, name: str, value: int, values: int, register: Any) -> Any:
        """Store the sum of the lanes as one of ``values``; a statement of a macro."""
        import tilelang.ascend.language as T

        at = self._row * values + value
        return T.simd.vsts(self._ub[name][self._slot, at], T.simd.vcadd(register), dist="ONEPT_B32")


def stream_program(
    name: str,
    parameters: Sequence[Parameter],
    plan: RowPlan,
    cores: int,
    tokens: Extent,
    hidden: int,
    tensors: Sequence[StreamTensor | MixTensor],
    compute: Callable[[StreamRow], Any] | None,
) -> Any:
    """The TileLang function that takes every token through the macro ``compute``.

    Without ``compute`` a tensor is a copy of the one whose ``place`` it has, once per stream of its own.
    """
    import tilelang.ascend.language as T

    entry = Entry(name, parameters)
    count_of_tokens = entry.extent(tokens)

    def rows(buffer: Any, width: int) -> Any:
        return looked_at(buffer, (count_of_tokens, width))

    @T.macro
    def move_mixes(tensor: Any, buffer: Any, ub: Any, at: Any, into_ub: Any) -> None:
        slot, first, count = at
        width = tensor.values
        if into_ub:
            T.copy(
                rows(buffer, width)[first : first + count, 0:width],
                ring_rows(ub, width)[slot, 0:count, 0:width],
            )
        else:
            T.copy(
                ring_rows(ub, width)[slot, 0:count, 0:width],
                rows(buffer, width)[first : first + count, 0:width],
            )

    @T.macro
    def load(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, ub = state
        for tensor in tensors:
            if tensor.read:
                if isinstance(tensor, MixTensor):
                    move_mixes(
                        tensor, getattr(call, tensor.name), ub[tensor.name], (slot, first, count), True
                    )
                else:
                    width = tensor.streams * hidden
                    T.copy(
                        rows(getattr(call, tensor.name), width)[first : first + count, 0:width],
                        ub[tensor.name][slot, 0:count, 0:width],
                    )

    @T.macro
    def compute_rows(state: Any, slot: Any, first: Any, count: Any) -> None:
        _, ub = state
        if compute is not None:
            with T.SimdVF():
                for turn in T.serial(T.cast(count, "uint16")):
                    compute(StreamRow(ub, slot, T.cast(turn, "int32"), hidden))

    @T.macro
    def store(state: Any, slot: Any, first: Any, count: Any) -> None:
        call, ub = state
        for tensor in tensors:
            if tensor.written:
                if isinstance(tensor, MixTensor):
                    move_mixes(
                        tensor, getattr(call, tensor.name), ub[tensor.name], (slot, first, count), False
                    )
                elif compute is None:
                    width = tensor.streams * hidden
                    for stream in range(tensor.streams):
                        T.copy(
                            ub[tensor.name][slot, 0:count, 0:hidden],
                            rows(getattr(call, tensor.name), width)[
                                first : first + count, stream * hidden : (stream + 1) * hidden
                            ],
                        )
                else:
                    width = tensor.streams * hidden
                    T.copy(
                        ub[tensor.name][slot, 0:count, 0:width],
                        rows(getattr(call, tensor.name), width)[first : first + count, 0:width],
                    )

    run = row_pipeline(plan, cores, count_of_tokens, load=load, compute=compute_rows, store=store)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            ub = {}
            for tensor in tensors:
                if isinstance(tensor, MixTensor):
                    values = padded(plan.rows * tensor.values, 8)
                    ub[tensor.name] = T.alloc_shared((plan.stages, values), "float32")
                elif tensor.place != "":
                    ub[tensor.name] = ub[tensor.place]
                else:
                    width = tensor.streams * hidden
                    ub[tensor.name] = T.alloc_shared((plan.stages, plan.rows, width), "bfloat16")
            run((call, ub), core)

    return entry.prim_func(block)
