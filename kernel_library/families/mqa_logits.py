"""mqa_logits: the sparse attention indexer's scores of queries for keys that all heads share."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.attention.indexer_fields import (
    HEADS_MULTIPLE,
    LEAST_HEADS,
    MAX_TOKENS,
    MOST_HEADS,
    STEP_KEYS,
    require_indexer_fields,
    require_room,
    tiles_of,
)
from kaas.kernel_library.attention.indexer_scores import (
    INDEXER_SCORES_SOURCES,
    Block,
    aligned_down,
    indexer_scores,
    key_slot,
)
from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS
from kaas.kernel_library.cube.scaled_operands import PAIR
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_dim, within
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

ITEMS_PER_CORE = 4
"""Keys of a block of queries are split between cores until there is this much to share out."""


class MqaLogitsSpec(KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mqa_logits"):
    """out[i, j] = sum over heads h of relu(q[i, h] . kv[ks[i] + j]) * weights[i, h], j below ke[i] - ks[i].

    ``heads`` is a multiple of 4 from 4 to 64, ``head_dim`` is 64 or 128. Queries and keys are ``dtype`` with
    an e8m0 scale for 32 values. ``tokens`` counts queries, ``keys`` keys, ``columns`` the columns of the
    result. With ``clean`` the columns behind a query's window are minus infinity; without it they keep what
    they hold.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Annotated[int, within(LEAST_HEADS, MOST_HEADS, multiple_of=HEADS_MULTIPLE)] = 64
    head_dim: Literal[64, 128] = 128
    dtype: Literal["e4m3", "e2m1"] = "e4m3"
    tokens: Annotated[int, within(1, MAX_TOKENS)] | Literal["dynamic"] = "dynamic"
    keys: Annotated[int, within(1, MAX_TOKENS)] | Literal["dynamic"] = "dynamic"
    columns: Dim = "dynamic"
    clean: bool = False

    def __post_init__(self) -> None:
        require_indexer_fields(self)
        require_dim(self.keys, "keys", MAX_TOKENS)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if ``target``'s buffers are too small."""
        require_room(self, target)


def parameters(spec: MqaLogitsSpec) -> tuple[Parameter, ...]:
    """What a call takes: queries, keys, their scales, the weights of heads, windows and the result."""
    tokens: Extent = "tokens" if spec.tokens == DYNAMIC else spec.tokens
    rows: Extent = f"tokens*{spec.heads}" if spec.tokens == DYNAMIC else spec.tokens * spec.heads
    keys: Extent = "keys" if spec.keys == DYNAMIC else spec.keys
    columns: Extent = "columns" if spec.columns == DYNAMIC else spec.columns
    dim, pairs = spec.head_dim, spec.head_dim // PAIR
    stored, packed = ("e2m1x2", 2) if spec.dtype == "e2m1" else ("e4m3", 1)
    return (
        Parameter(name="q", role="in", dtype=stored, shape=(tokens, spec.heads, dim // packed)),
        Parameter(name="q_scales", role="in", dtype="e8m0x2", shape=(pairs, rows)),
        Parameter(name="kv", role="in", dtype=stored, shape=(keys, dim // packed), may_be_empty=True),
        Parameter(name="kv_scales", role="in", dtype="e8m0x2", shape=(pairs, keys), may_be_empty=True),
        Parameter(name="weights", role="in", dtype="bf16", shape=(tokens, spec.heads)),
        Parameter(name="ks", role="in", dtype="int32", shape=(tokens,)),
        Parameter(name="ke", role="in", dtype="int32", shape=(tokens,)),
        Parameter(name="out", role="out" if spec.clean else "inout", dtype="bf16", shape=(tokens, columns)),
    )


def build(spec: MqaLogitsSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count.

    Raises :class:`DoesNotFit` if ``target``'s buffers are too small.
    """
    require_room(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, target.cube_cores),
        choices=tiles_of(spec).choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: MqaLogitsSpec, cores: int) -> Any:
    """The TileLang function of ``spec``: items are blocks of queries with a part of their keys."""
    import tilelang.ascend.language as T

    entry = Entry("mqa_logits", parameters(spec))
    tiles = tiles_of(spec)
    tokens = entry.extent("tokens" if spec.tokens == DYNAMIC else spec.tokens)
    keys = entry.extent("keys" if spec.keys == DYNAMIC else spec.keys)
    columns = entry.extent("columns" if spec.columns == DYNAMIC else spec.columns)
    block_queries, dim, pairs = tiles.block_queries, spec.head_dim, tiles.pairs

    @T.macro
    def window(call: Any, query: Any) -> Any:
        start = T.alloc_var("int32")
        end = T.alloc_var("int32")
        start = T.min(T.max(call.ks[query], 0), keys)
        end = T.max(T.min(call.ke[query], keys), start)
        return start, end

    @T.macro
    def load_keys(rings: Any, call: Any, block: Any, key: Any) -> None:
        T.copy(call.kv[key : key + STEP_KEYS, 0:dim], rings.k_l1[key_slot(rings), :, :])
        T.copy(
            call.kv_scales[0:pairs, key : key + STEP_KEYS],
            rings.k_scales_l1[key_slot(rings), :, :],
            transpose=True,
        )

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        blocks = T.alloc_var("int32")
        parts = T.alloc_var("int32")
        turns = T.alloc_var("int32")
        part = T.alloc_var("int32")
        first = T.alloc_var("int32")
        count = T.alloc_var("int32")
        begin = T.alloc_var("int32")
        end = T.alloc_var("int32")
        share = T.alloc_var("int32")
        steps = T.alloc_var("int32")
        cleans = T.alloc_var("int32")
        blocks = T.truncdiv(tokens + block_queries - 1, block_queries)
        parts = T.max(T.truncdiv(ITEMS_PER_CORE * cores, T.max(blocks, 1)), 1)
        # A variable, because TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(blocks * parts + cores - 1 - core, cores)
        for turn in T.serial(turns):
            part = T.truncmod(turn * cores + core, parts)
            first = T.truncdiv(turn * cores + core, parts) * block_queries
            count = T.min(block_queries, tokens - first)
            begin = keys
            end = 0
            for query in T.serial(count):
                window_start, window_end = window(call, first + query)
                if window_start < window_end:
                    begin = T.min(begin, window_start)
                    end = T.max(end, window_end)
            begin = aligned_down(begin)
            steps = T.max(T.truncdiv(end - begin + STEP_KEYS - 1, STEP_KEYS), 0)
            share = T.truncdiv(steps + parts - 1, parts)
            steps = T.max(T.min(share, steps - part * share), 0)
            begin += part * share * STEP_KEYS
            cleans = T.Select(part == 0, 1, 0)
            visit(Block(first=first, count=count, begin=begin, end=end, steps=steps, cleans=cleans))

    scores = indexer_scores(
        tiles,
        cores,
        tokens=tokens,
        columns=columns,
        clean=spec.clean,
        walk=walk,
        window=window,
        load_keys=load_keys,
    )

    return entry.prim_func(scores)


PAGE = KernelPage(
    computes="""
Each query i looks at the keys of its window `ks[i] <= k < ke[i]`, and its row of the result begins with the
first of them:

    out[i, j] = sum over heads h of relu(q[i, h] . kv[ks[i] + j]) * weights[i, h]     for j < ke[i] - ks[i]

Products, weights and sums are fp32; a sum is rounded to bf16 once. Windows are cut off at 0 and at the number
of keys, and rows at the number of columns. Windows may be empty, overlap and lie in any order; neighbouring
queries with neighbouring windows are the fast case. Columns behind a window keep what they hold, or become
minus infinity with `clean`.

*Work.* Up to 64 rows of query heads make a tile and eight tiles a block, whose values stay at the cube while
its keys pass in steps of 256. Cores take blocks in turn; where there are few, cores share a block's keys. A
score does not depend on that. Tiles are skipped where a step has none of their keys.

*Rows.* A number of columns that is a multiple of 256 makes rows start at multiples of 512 bytes.
""",
    arguments={
        "q": "[tokens, heads, head_dim], row-major; e2m1 as pairs, the even one in the low nibble",
        "q_scales": "scale pairs of q: 16-bit words [head_dim/64, tokens*heads], the first 32 values in the "
        "low byte",
        "kv": "[keys, head_dim], one key for all heads; e2m1 as pairs likewise",
        "kv_scales": "scale pairs of kv: [head_dim/64, keys]",
        "weights": "[tokens, heads], a factor for each head's score",
        "ks": "the first key of each query's window",
        "ke": "the key after the last of each query's window",
        "out": "[tokens, columns], row-major, each row from its window's first key on",
    },
    tolerance="small integers to the last bit of bf16; random values within calc_diff 5e-4 of float64 "
    "products of the dequantised values",
    facts=(
        "https://github.com/deepseek-ai/DeepGEMM (fp8_fp4_mqa_logits: arguments, rows from ks on, limits)",
    ),
    serves=("deep_gemm.fp8_fp4_mqa_logits",),
    examples=(MqaLogitsSpec(), MqaLogitsSpec(heads=32, dtype="e2m1", clean=True)),
)

FAMILY = Family(
    name="mqa_logits",
    summary="the sparse attention indexer's scores: relu of products, weighted and summed over heads",
    spec_type=MqaLogitsSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=INDEXER_SCORES_SOURCES,
    page=PAGE,
)
