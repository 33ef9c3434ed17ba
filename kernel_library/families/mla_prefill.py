"""mla_prefill: dense attention of a ragged batch of sequences, head by head."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

import msgspec

from kaas.kernel_library.attention.attention_program import ATTENTION_SOURCES, attention_program
from kaas.kernel_library.attention.attention_softmax import softmax_scale
from kaas.kernel_library.attention.attention_tiles import (
    AttentionTile,
    AttentionTiles,
    plan_attention,
    require_attention_tile,
)
from kaas.kernel_library.attention.row_views import HeadRows
from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import (
    DYNAMIC,
    Dim,
    KernelSpec,
    require_bool,
    require_dim,
    require_int,
    require_one_of,
    within,
)
from kaas.proto.errors import InvalidSpec
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

D_V = 128
MAX_HEADS = 256
NOMINAL_TOKENS = 4096
"""How many query tokens a dynamic batch is taken to have."""


class MlaPrefillSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mla_prefill"):
    """Softmax attention of sequences that lie one after the other, each query head on its own.

    Queries and keys are ``d_qk`` wide, values 128. ``group`` consecutive query heads share a head of keys and
    values. With ``causal`` the last query of a sequence sees all of its keys, the one before it all but the
    last, and so on. ``tile`` overrides the queries and the keys that meet at a time.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Annotated[int, within(1, MAX_HEADS)] = 128
    group: Annotated[int, within(1, MAX_HEADS)] = 1
    d_qk: Literal[128, 192] = 192
    causal: bool = False
    tokens: Dim = "dynamic"
    tile: AttentionTile | None = None

    def __post_init__(self) -> None:
        require_int(self.heads, "heads", 1, MAX_HEADS)
        require_int(self.group, "group", 1, MAX_HEADS)
        if self.heads % self.group:
            legal = [count for count in range(1, self.heads + 1) if self.heads % count == 0]
            raise InvalidSpec(
                f"group is {self.group}, which does not divide {self.heads} heads; "
                f"legal: {', '.join(map(str, legal))}",
                field="group",
                legal=legal,
            )
        require_one_of(self.d_qk, "d_qk", (128, 192))
        require_bool(self.causal, "causal")
        require_dim(self.tokens, "tokens")
        require_attention_tile(self.tile)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads // self.group

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if no tile (or not the given one) fits ``target``'s buffers."""
        tiles_of(self, target)


def tiles_of(spec: MlaPrefillSpec, target: Target) -> tuple[AttentionTiles, dict[str, Any]]:
    """The tiles and why; raises :class:`DoesNotFit` if nothing fits."""
    tokens = NOMINAL_TOKENS if spec.tokens == DYNAMIC else int(spec.tokens)
    return plan_attention(
        target,
        d_qk=spec.d_qk,
        d_v=D_V,
        shared_values=False,
        row_counts=(16, 32, 64, 128),
        key_counts=(16, 32, 64, 128),
        matrices=spec.heads,
        matrix_rows=tokens,
        given=spec.tile,
    )


def parameters(spec: MlaPrefillSpec) -> tuple[Parameter, ...]:
    """What a call takes: queries, keys, values, where sequences begin, the scale, output and lse."""
    tokens = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    keys = ("kv_tokens", spec.kv_heads)
    return (
        Parameter(name="q", role="in", dtype="bf16", shape=(tokens, spec.heads, spec.d_qk)),
        Parameter(name="k", role="in", dtype="bf16", shape=(*keys, spec.d_qk), may_be_empty=True),
        Parameter(name="v", role="in", dtype="bf16", shape=(*keys, D_V), may_be_empty=True),
        Parameter(name="cu_seqlens_q", role="in", dtype="int32", shape=("offsets",)),
        Parameter(name="cu_seqlens_k", role="in", dtype="int32", shape=("offsets",)),
        softmax_scale(),
        Parameter(name="out", role="inout", dtype="bf16", shape=(tokens, spec.heads, D_V)),
        Parameter(name="lse", role="inout", dtype="fp32", shape=(spec.heads, tokens)),
    )


def build(spec: MlaPrefillSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count and buffer sizes.

    Raises :class:`DoesNotFit` if no tile fits.
    """
    tiles, why = tiles_of(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, tiles, target.cube_cores),
        choices={**tiles.choices(), "why": why},
        pass_configs=dict(PASS_CONFIGS),
    )


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """One tile: its head, its first query token and the end of them, its first key and how many there are.

    ``limit`` is how many keys the tile's first row sees.
    """

    call: Any
    head: Any
    row: Any
    end: Any
    key: Any
    length: Any
    limit: Any


def _program(spec: MlaPrefillSpec, tiles: AttentionTiles, cores: int) -> Any:
    """The TileLang function of ``spec``: the tiles of all sequences and heads are one sequence."""
    import tilelang.ascend.language as T

    entry = Entry("mla_prefill", parameters(spec))
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    kv_tokens, offsets = entry.extent("kv_tokens"), entry.extent("offsets")
    heads, group = spec.heads, spec.group
    rows, keys, half = tiles.rows, tiles.keys, tiles.rows // 2

    @T.macro
    def load_query(place: Any, q_l1: Any) -> None:
        queries = HeadRows(place.call.q, place.head, place.end)
        T.copy(queries[place.row : place.row + rows, 0 : spec.d_qk], q_l1)

    @T.macro
    def load_keys(rings: Any, place: Any, block: Any) -> None:
        first = place.key + block * keys
        head = T.truncdiv(place.head, group)
        end = place.key + place.length
        T.copy(
            HeadRows(place.call.k, head, end)[first : first + keys, 0 : spec.d_qk],
            rings.k_l1[rings.key_slot(block), :, :],
        )
        T.copy(
            HeadRows(place.call.v, head, end)[first : first + keys, 0:D_V],
            rings.v_l1[rings.key_slot(block), :, :],
        )

    def limits(state: Any, place: Any) -> Any:
        if not spec.causal:
            return T.simd.vdup(place.length, "int32")
        return T.simd.vci(place.limit + state.vector_core * half, "int32")

    @T.macro
    def store(state: Any, call: Any, place: Any) -> None:
        row = T.alloc_var("int32")
        count = T.alloc_var("int32")
        row = place.row + state.vector_core * half
        count = T.max(T.min(place.end - row, half), 0)
        if count > 0:
            T.copy(state.result_ub[0:count, 0:D_V], call.out[row : row + count, place.head, 0:D_V])
            T.copy(state.lse_ub[0:count], call.lse[place.head, row : row + count])

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        # This core's next tile in the order of all tiles, counted from the running sequence's first one.
        mine = T.alloc_var("int32")
        mine = core
        turns = T.alloc_var("int32")
        q_start = T.alloc_var("int32")
        q_end = T.alloc_var("int32")
        key = T.alloc_var("int32")
        length = T.alloc_var("int32")
        count = T.alloc_var("int32")
        head = T.alloc_var("int32")
        row = T.alloc_var("int32")
        limit = T.alloc_var("int32")
        met = T.alloc_var("int32")
        blocks = T.alloc_var("int32")
        for sequence in T.serial(offsets - 1):
            q_start = T.max(T.min(call.cu_seqlens_q[sequence], tokens), 0)
            q_end = T.max(T.min(call.cu_seqlens_q[sequence + 1], tokens), q_start)
            key = T.max(T.min(call.cu_seqlens_k[sequence], kv_tokens), 0)
            length = T.max(T.min(call.cu_seqlens_k[sequence + 1], kv_tokens) - key, 0)
            count = T.truncdiv(q_end - q_start + rows - 1, rows) * heads
            turns = T.max(T.truncdiv(count - mine + cores - 1, cores), 0)
            for turn in T.serial(turns):
                head = T.truncmod(turn * cores + mine, heads)
                row = q_start + T.truncdiv(turn * cores + mine, heads) * rows
                limit = length - (q_end - row) + 1
                met = length
                if spec.causal:
                    met = T.max(length - T.max(q_end - row - rows, 0), 0)
                blocks = T.truncdiv(met + keys - 1, keys)
                visit(
                    _Place(call=call, head=head, row=row, end=q_end, key=key, length=length, limit=limit),
                    blocks,
                )
            mine = T.truncmod(mine + cores - T.truncmod(count, cores), cores)

    return attention_program(
        entry,
        tiles,
        cores,
        walk=walk,
        load_query=load_query,
        load_keys=load_keys,
        limits=limits,
        store=store,
        lse_pitch=1,
    )


PAGE = KernelPage(
    computes="""
Sequence i has the queries `cu_seqlens_q[i]` to `cu_seqlens_q[i+1]` and the keys `cu_seqlens_k[i]` to
`cu_seqlens_k[i+1]`. For every query t and head h of it, over the keys j that it sees and g = h / group,

    score[j]    = softmax_scale * sum over d of q[t,h,d] * k[j,g,d]
    lse[h,t]    = ln sum over j of exp(score[j])
    out[t,h]    = sum over j of exp(score[j] - lse[h,t]) * v[j,g]

With `causal`, query t of a sequence of n queries and m keys, counted from 0, sees the first m - n + 1 +
t keys: the last query sees them all. A query that sees none has output 0 and lse +inf. Starts beyond
the tokens count as their end; tokens of no sequence are neither read nor written.

*How.* A tile is up to 128 queries of one head. Its keys come in blocks: the cube multiplies queries and
keys, the vector cores make exponentials of the scores under a maximum that may still grow, the cube
multiplies them, as bf16, with the values, and the vector cores add that to sums of fp32, which shrink
when the maximum grows. Scores of the next block are computed before the values of the last one. Tiles
of all sequences and heads are one sequence that the cores take in turn, heads first; blocks that no
query of a tile sees are left out. A result does not depend on the core count.

*Infinities and NaN.* A score of -inf weighs nothing. NaN in a query, in a key that it sees, or a score
of +inf makes its output and lse NaN. A value that is not finite makes NaN of its column of values for
all queries of the tile that its block meets, seen or not: 0 * inf.
""",
    arguments={
        "q": "[tokens, heads, d_qk], the sequences one after the other",
        "k": "[kv_tokens, heads / group, d_qk]",
        "v": "[kv_tokens, heads / group, 128]",
        "cu_seqlens_q": "where each sequence's queries begin, and where the last one's end",
        "cu_seqlens_k": "likewise of keys",
        "softmax_scale": "factor of the scores, d_qk^-0.5 as a rule; from -2^32 to 2^32",
        "out": "[tokens, heads, 128]; only tokens of sequences are written",
        "lse": "[heads, tokens], natural logarithms; only tokens of sequences are written",
    },
    tolerance="outputs within 1e-3 + 2.01/128 and calc_diff 5e-6 of float64, lse within 1e-6 + 8.01/65536; "
    "equal weights of 2^n whole values and single keys to the last bit",
    facts=(
        "https://github.com/deepseek-ai/FlashMLA (flash_attn_varlen_func: arguments, mask, layout of lse)",
        "asc-devkit, asc_copy_l0c2ub: rows of an accumulator split over both vector cores",
    ),
    serves=("flash_mla.flash_attn_varlen_func",),
    examples=(
        MlaPrefillSpec(causal=True),
        MlaPrefillSpec(heads=32, group=4, d_qk=128),
    ),
)

FAMILY = Family(
    name="mla_prefill",
    summary="dense attention of a ragged batch of sequences, each query head on its own",
    spec_type=MlaPrefillSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=ATTENTION_SOURCES,
    page=PAGE,
)
