"""mla_prefill: dense attention of a ragged batch of sequences, head by head."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from kaas.kernel_library.attention.attention_program import ATTENTION_SOURCES, attention_program
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

    Queries and keys are ``d_qk`` wide, values 128. ``heads / kv_heads`` consecutive query heads share a head
    of keys and values; ``kv_heads`` is ``heads`` unless given. With ``causal`` the last query of a sequence
    sees all of its keys, the one before it all but the last, and so on. ``tile`` overrides the queries and
    the keys that meet at a time.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Annotated[int, within(1, MAX_HEADS)] = 128
    kv_heads: Annotated[int, within(1, MAX_HEADS)] = 128
    d_qk: Literal[128, 192] = 192
    causal: bool = True
    tokens: Dim = "dynamic"
    tile: AttentionTile | None = None

    def __post_init__(self) -> None:
        require_int(self.heads, "heads", 1, MAX_HEADS)
        require_int(self.kv_heads, "kv_heads", 1, MAX_HEADS)
        if self.heads % self.kv_heads:
            legal = [count for count in range(1, self.heads + 1) if self.heads % count == 0]
            raise InvalidSpec(
                f"kv_heads is {self.kv_heads}, which does not divide {self.heads} heads",
                field="kv_heads",
                legal=legal,
            )
        require_one_of(self.d_qk, "d_qk", (128, 192))
        require_bool(self.causal, "causal")
        require_dim(self.tokens, "tokens")
        require_attention_tile(self.tile)

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
        total_rows=tokens * spec.heads,
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
        Parameter(name="softmax_scale", role="scalar", dtype="fp32"),
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


@dataclass(frozen=True, kw_only=True)
class _Place:
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
    heads, group = spec.heads, spec.heads // spec.kv_heads
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
        # Where this core's next tile is in the sequence of all tiles, counted from the running sequence's first.
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
    computes="WIP",
    arguments={
        "q": "[tokens, heads, d_qk]",
        "k": "[kv_tokens, kv_heads, d_qk]",
        "v": "[kv_tokens, kv_heads, 128]",
        "cu_seqlens_q": "[sequences + 1]",
        "cu_seqlens_k": "[sequences + 1]",
        "softmax_scale": "scale",
        "out": "[tokens, heads, 128]",
        "lse": "[heads, tokens]",
    },
    tolerance="WIP",
    facts=("https://github.com/deepseek-ai/FlashMLA",),
    serves=("flash_mla.flash_attn_varlen_func",),
    examples=(MlaPrefillSpec(),),
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
