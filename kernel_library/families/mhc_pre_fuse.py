"""mhc_pre_fuse: from the projection of a token's streams to its mixes and the input of the layer."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any

from kaas.kernel_library.entry import Entry, looked_at, ring_rows
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    Epsilon,
    KernelSpec,
    require_dim,
    require_epsilon,
    require_float,
    require_int,
    within,
)
from kaas.kernel_library.vector.mhc_fields import (
    Hidden,
    SinkhornEpsilon,
    Streams,
    require_hidden,
    require_sinkhorn_epsilon,
    require_streams,
)
from kaas.kernel_library.vector.row_pipeline import PASS_CONFIGS
from kaas.kernel_library.vector.row_plan import VECTOR_LANES, RowPlan, padded, plan_rows
from kaas.kernel_library.vector.sinkhorn_lanes import SINKHORN_SOURCES, normalised, softmax_of
from kaas.kernel_library.vector.stream_rows import STREAM_ROW_SOURCES, StreamRow
from kaas.kernel_library.vector.token_lanes import (
    TOKEN_LANE_SOURCES,
    Lanes,
    LaneTensor,
    lane_offsets,
    reciprocal_rms,
    sigmoid,
    token_extent,
)
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

SIDES = 2
"""Blocks of mixes in UB: one is loaded or stored while the streams of the other pass."""


class MhcPreFuseSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mhc_pre_fuse"):
    """mhc_norm_mixes, mhc_split_mixes, mhc_sinkhorn of comb and mhc_pre_apply of pre, in one kernel.

    M is ``streams``. Arguments in call order: mixes[tokens, M * (M + 2)], square_sum[tokens], scale[3],
    base[M * (M + 2)], all fp32, x[tokens, M, hidden] bf16; post_mix[tokens, M], comb_mix[tokens, M, M] fp32,
    y[tokens, hidden] bf16. ``norm_eps`` is the norm's, ``repeat`` and ``sinkhorn_eps`` are mhc_sinkhorn's,
    ``pre_eps`` and ``post_mult`` mhc_split_mixes'; they are compiled in.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    hidden: Hidden
    streams: Streams = 4
    norm_eps: Epsilon = 1e-6
    pre_eps: Epsilon = 1e-6
    post_mult: Annotated[float, within(0.0, 1024.0)] = 2.0
    repeat: Annotated[int, within(1, 32)] = 10
    sinkhorn_eps: SinkhornEpsilon = 1e-6
    tokens: Dim = "dynamic"

    def __post_init__(self) -> None:
        require_hidden(self.hidden)
        require_streams(self.streams)
        require_epsilon(self.norm_eps, "norm_eps")
        require_epsilon(self.pre_eps, "pre_eps")
        require_float(self.post_mult, "post_mult", 0.0, 1024.0)
        require_int(self.repeat, "repeat", 1, 32)
        require_sinkhorn_epsilon(self.sinkhorn_eps, "sinkhorn_eps")
        require_dim(self.tokens, "tokens")

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if a token does not fit ``target``'s UB beside two blocks of mixes."""
        plan_of(self, target)


def plan_of(spec: MhcPreFuseSpec, target: Target) -> RowPlan:
    """The plan of tokens' streams; the mixes of two blocks of 64 tokens stay outside its ring."""
    token_bytes = 2 * spec.streams
    fixed_bytes = 4 * (
        SIDES * VECTOR_LANES * sum(tensor.values for tensor in _tensors(spec))
        + VECTOR_LANES * spec.streams
        + sum(padded(values) for values in _constants(spec).values())
    )
    return plan_rows(
        target,
        row_bytes=token_bytes * spec.hidden,
        fixed_bytes=fixed_bytes,
        rows=None if spec.tokens == DYNAMIC else int(spec.tokens),
        what=f"a token with {spec.streams} rows of {spec.hidden} bf16, beside two blocks of mixes,",
    )


def _tensors(spec: MhcPreFuseSpec) -> tuple[LaneTensor, ...]:
    streams = spec.streams
    return (
        LaneTensor(name="mixes", values=streams * (streams + 2)),
        LaneTensor(name="square_sum", values=1),
        LaneTensor(name="post_mix", values=streams, written=True),
        LaneTensor(name="comb_mix", values=streams**2, written=True),
    )


def _constants(spec: MhcPreFuseSpec) -> dict[str, int]:
    return {"scale": 3, "base": spec.streams * (spec.streams + 2)}


def parameters(spec: MhcPreFuseSpec) -> tuple[Parameter, ...]:
    """What a call takes: mixes, square_sum, scale, base, x, post_mix, comb_mix, y."""
    tokens, streams = token_extent(spec.tokens), spec.streams
    width = streams * (streams + 2)
    return (
        Parameter(name="mixes", role="in", dtype="fp32", shape=(tokens, width)),
        Parameter(name="square_sum", role="in", dtype="fp32", shape=(tokens,)),
        Parameter(name="scale", role="in", dtype="fp32", shape=(3,)),
        Parameter(name="base", role="in", dtype="fp32", shape=(width,)),
        Parameter(name="x", role="in", dtype="bf16", shape=(tokens, streams, spec.hidden)),
        Parameter(name="post_mix", role="out", dtype="fp32", shape=(tokens, streams)),
        Parameter(name="comb_mix", role="out", dtype="fp32", shape=(tokens, streams, streams)),
        Parameter(name="y", role="out", dtype="bf16", shape=(tokens, spec.hidden)),
    )


def build(spec: MhcPreFuseSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``; raises :class:`DoesNotFit` if a token does not fit UB."""
    plan = plan_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, plan, target.vector_cores),
        choices=plan.choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MhcPreFuseSpec, plan: RowPlan, cores: int) -> Any:
    """The TileLang function of ``spec``.

    A core takes blocks of up to 64 tokens: first their mixes, 64 tokens side by side, then their streams,
    token by token through a ring of stages. Flags 0 to ``stages - 1`` are the ring's, the next two those of
    the blocks' mixes.
    """
    import tilelang.ascend.language as T

    entry = Entry("mhc_pre_fuse", parameters(spec))
    tokens = entry.extent(token_extent(spec.tokens))
    tensors, constants = _tensors(spec), _constants(spec)
    streams, hidden, stages, most = spec.streams, spec.hidden, plan.stages, plan.rows
    size, width = streams**2, streams * hidden
    softmax = softmax_of(streams)
    divide_rows = normalised(streams, spec.sinkhorn_eps, rows=True)
    divide_columns = normalised(streams, spec.sinkhorn_eps, rows=False)

    def rows_of(tensor: Any, values: int) -> Any:
        return looked_at(tensor, (tokens, values))

    @T.macro
    def move(call: Any, ub: Any, side: Any, first: Any, count: Any, stored: Any) -> None:
        for tensor in tensors:
            if tensor.written == stored:
                values = tensor.values
                if stored:
                    T.copy(
                        ring_rows(ub[tensor.name][1], values)[side, 0:count, 0:values],
                        rows_of(getattr(call, tensor.name), values)[first : first + count, 0:values],
                    )
                else:
                    T.copy(
                        rows_of(getattr(call, tensor.name), values)[first : first + count, 0:values],
                        ring_rows(ub[tensor.name][1], values)[side, 0:count, 0:values],
                    )

    @T.macro
    def logit(lanes: Any, factor: Any, value: Any, part: Any) -> Any:
        """A mixing logit, normalised, scaled and shifted; rounded after every operation."""
        scaled = T.simd.vmul(T.simd.vmul(lanes.get("mixes", value), factor), lanes.constant("scale", part))
        return T.simd.vadd(scaled, lanes.constant("base", value))

    @T.macro
    def mix(ub: Any, constants_ub: Any, pre_ub: Any, side: Any, count: Any) -> None:
        """The mixes of a block; those of pre stay in UB, token by token."""
        with T.SimdVF():
            offsets = {values: lane_offsets(values) for values in {one.values for one in tensors}}
            mask = T.simd.update_mask(T.cast(count, "uint32"), 32)
            lanes = Lanes(ub, (side, 0), (offsets, mask, constants_ub, None))
            factor = T.simd.alloc_var("float32")
            factor = reciprocal_rms(lanes.get("square_sum", 0), width, spec.norm_eps)
            for i in range(streams):
                pre = T.simd.vadds(sigmoid(logit(lanes, factor, i, 0)), spec.pre_eps)
                T.simd.vscatter(pre, pre_ub[i], offsets[streams], mask)
            for i in range(streams):
                post = T.simd.vmuls(sigmoid(logit(lanes, factor, streams + i, 1)), spec.post_mult)
                lanes.put("post_mix", i, post)
            cell = T.simd.alloc_local((size,), "float32")
            for i in range(size):
                cell[i] = logit(lanes, factor, 2 * streams + i, 2)
            softmax(cell)
            for i in range(size):
                cell[i] = T.simd.vadds(cell[i], spec.sinkhorn_eps)
            divide_columns(cell)
            if spec.repeat > 1:
                for _ in T.serial(T.uint16(spec.repeat - 1)):
                    divide_rows(cell)
                    divide_columns(cell)
            for i in range(size):
                lanes.put("comb_mix", i, cell[i])

    @T.macro
    def apply(x_ub: Any, pre_ub: Any, slot: Any, done: Any, count: Any) -> None:
        """y of ``count`` tokens of a stage, in place of their first streams; ``done`` come before them."""
        with T.SimdVF():
            for turn in T.serial(T.cast(count, "uint16")):
                token = T.cast(turn, "int32")
                row = StreamRow({"x": x_ub}, slot, token, hidden)
                pre = T.simd.alloc_local((streams,), "float32")
                for m in range(streams):
                    pre[m] = T.simd.vld(pre_ub[(done + token) * streams + m], dist="BRC_B32")
                for vector_16 in T.serial(T.uint16(hidden // VECTOR_LANES)):
                    vector = T.cast(vector_16, "int32")
                    total = T.simd.alloc_var("float32")
                    total = T.simd.vmul(row.get("x", 0, vector), pre[0])
                    for m in range(1, streams):
                        T.simd.vmula(total, row.get("x", m, vector), pre[m])
                    row.put("x", 0, vector, total)

    @T.macro
    def pass_streams(state: Any, slot: Any, first: Any, done: Any, count: Any) -> None:
        call, x_ub, pre_ub = state
        start = T.alloc_var("int32")
        start = first + done
        T.ascend_wait_flag("MTE3_MTE2", slot)
        T.copy(rows_of(call.x, width)[start : start + count, 0:width], x_ub[slot, 0:count, 0:width])
        T.ascend_set_flag("MTE2_V", slot)
        T.ascend_wait_flag("MTE2_V", slot)
        apply(x_ub, pre_ub, slot, done, count)
        T.ascend_set_flag("V_MTE3", slot)
        T.ascend_wait_flag("V_MTE3", slot)
        T.copy(x_ub[slot, 0:count, 0:hidden], call.y[start : start + count, 0:hidden])
        T.ascend_set_flag("MTE3_MTE2", slot)

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(cores) as core:
            ub = {
                tensor.name: (tensor, T.alloc_shared((SIDES, VECTOR_LANES * tensor.values), "float32"))
                for tensor in tensors
            }
            constants_ub = {
                name: T.alloc_shared((padded(values),), "float32") for name, values in constants.items()
            }
            pre_ub = T.alloc_shared((VECTOR_LANES * streams,), "float32")
            x_ub = T.alloc_shared((stages, most, width), "bfloat16")
            per_block = T.alloc_var("int32")
            turns = T.alloc_var("int32")
            first = T.alloc_var("int32")
            count = T.alloc_var("int32")
            groups = T.alloc_var("int32")
            done = T.alloc_var("int32")
            rows = T.alloc_var("int32")
            # Counts the groups of all blocks: the ring goes round with it.
            passed = T.alloc_var("int32", init=0)
            # As few rounds of all cores as 64 tokens to a block allow, and equal shares of them.
            turns = T.max(T.truncdiv(tokens + VECTOR_LANES * cores - 1, VECTOR_LANES * cores), 1)
            per_block = T.max(T.truncdiv(tokens + turns * cores - 1, turns * cores), 1)
            for name, values in constants.items():
                T.copy(getattr(call, name)[0:values], constants_ub[name][0:values])
            for flag in T.serial(stages + SIDES):
                T.ascend_set_flag("MTE3_MTE2", flag)
            turns = T.truncdiv(T.truncdiv(tokens + per_block - 1, per_block) + cores - 1 - core, cores)
            for turn in T.serial(turns):
                first = (turn * cores + core) * per_block
                count = T.min(per_block, tokens - first)
                T.ascend_wait_flag("MTE3_MTE2", stages + turn % SIDES)
                move(call, ub, turn % SIDES, first, count, False)
                T.ascend_set_flag("MTE2_V", stages + turn % SIDES)
                T.ascend_wait_flag("MTE2_V", stages + turn % SIDES)
                mix(ub, constants_ub, pre_ub, turn % SIDES, count)
                T.ascend_set_flag("V_MTE3", stages + turn % SIDES)
                T.ascend_wait_flag("V_MTE3", stages + turn % SIDES)
                move(call, ub, turn % SIDES, first, count, True)
                T.ascend_set_flag("MTE3_MTE2", stages + turn % SIDES)
                groups = T.truncdiv(count + most - 1, most)
                for group in T.serial(groups):
                    done = group * most
                    rows = T.min(most, count - done)
                    pass_streams((call, x_ub, pre_ub), passed % stages, first, done, rows)
                    passed += 1
            for flag in T.serial(stages + SIDES):
                T.ascend_wait_flag("MTE3_MTE2", flag)

    return entry.prim_func(block)


FAMILY = Family(
    name="mhc_pre_fuse",
    summary="from the projection of a token's streams to its mixes and the input of the layer",
    spec_type=MhcPreFuseSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*dict.fromkeys((*TOKEN_LANE_SOURCES, *STREAM_ROW_SOURCES, *SINKHORN_SOURCES)),),
    page=KernelPage(
        computes=(
            "What these four do one after the other, without the trips to memory in between:\n\n"
            "    normed                       = mhc_norm_mixes(mixes, square_sum)\n"
            "    pre_mix, post_mix, comb      = mhc_split_mixes(normed, scale, base)\n"
            "    comb_mix                     = mhc_sinkhorn(comb)\n"
            "    y                            = mhc_pre_apply(x, pre_mix)\n\n"
            "mixes and square_sum are what hc_prenorm_gemm makes of x; their `hidden` is streams * hidden "
            "here. Every step rounds as its own kernel does."
        ),
        arguments={
            "mixes": "projection of a token's streams, row-major: pre, post and comb one behind the other",
            "square_sum": "sum of the squares of a token's streams",
            "scale": "factors of pre, post and comb",
            "base": "one offset for each value of a row of mixes",
            "x": "the residual streams, row-major",
            "post_mix": "row-major",
            "comb_mix": "row-major: one matrix per token",
            "y": "input of the layer, row-major",
        },
        tolerance="the same bits as the four kernels; against float64 each as those",
        facts=("https://github.com/deepseek-ai/TileKernels (mhc)",),
        serves=("tile_kernels.mhc.mhc_pre_big_fuse_fwd",),
        examples=(MhcPreFuseSpec(hidden=7168),),
    ),
)
