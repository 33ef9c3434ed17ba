"""paged_mqa_logits: the sparse attention indexer's scores of queries for keys in pages of a cache."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.attention.indexer_fields import (
    HEADS_MULTIPLE,
    LEAST_HEADS,
    MAX_TOKENS,
    MOST_HEADS,
    SPLIT_KEYS,
    STEP_KEYS,
    require_indexer_fields,
    require_next_n,
    require_room,
    tiles_of,
)
from kaas.kernel_library.attention.indexer_scores import INDEXER_SCORES_SOURCES, Block, indexer_scores
from kaas.kernel_library.attention.key_pages import (
    KEY_PAGES_SOURCE,
    LAYOUTS,
    PAGE_SIZES,
    PageShape,
    page_loader,
)
from kaas.kernel_library.attention.request_groups import (
    MAX_NEXT_N,
    REQUEST_GROUPS_SOURCE,
    query_extent,
    request_extent,
    request_groups,
    request_parameters,
)
from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS
from kaas.kernel_library.cube.scaled_operands import PAIR
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, Dim, KernelSpec, require_dim, require_one_of, within
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target


class PagedMqaLogitsSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="paged_mqa_logits"
):
    """out[i, j] = sum over heads h of relu(q[i, h] . key j of i's request) * weights[i, h].

    ``heads``, ``head_dim``, ``dtype``, ``columns`` and ``clean`` are those of mqa_logits. Keys lie in pages
    of ``page_size`` keys in ``layout``; ``pages`` counts those of the cache and ``table_columns`` those
    that a request may have. Requests have ``next_n`` queries each, or as ``indices`` says.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Annotated[int, within(LEAST_HEADS, MOST_HEADS, multiple_of=HEADS_MULTIPLE)] = 64
    head_dim: Literal[64, 128] = 128
    dtype: Literal["e4m3", "e2m1"] = "e4m3"
    page_size: Literal[64, 128] = 64
    layout: Literal["rows", "tiles"] = "rows"
    next_n: Annotated[int, within(1, MAX_NEXT_N)] | None = None
    tokens: Annotated[int, within(1, MAX_TOKENS)] | Literal["dynamic"] = "dynamic"
    pages: Annotated[int, within(1, MAX_TOKENS)] | Literal["dynamic"] = "dynamic"
    table_columns: Annotated[int, within(1, MAX_TOKENS)] | Literal["dynamic"] = "dynamic"
    columns: Dim = "dynamic"
    clean: bool = False

    def __post_init__(self) -> None:
        require_indexer_fields(self)
        require_one_of(self.page_size, "page_size", PAGE_SIZES)
        require_one_of(self.layout, "layout", LAYOUTS)
        require_next_n(self.next_n, self.tokens, MAX_NEXT_N)
        require_dim(self.pages, "pages", MAX_TOKENS)
        require_dim(self.table_columns, "table_columns", MAX_TOKENS)

    def check_target(self, target: Target) -> None:
        """Raise :class:`DoesNotFit` if ``target``'s buffers are too small."""
        require_room(self, target)


def page_of(spec: PagedMqaLogitsSpec) -> PageShape:
    """The pages of ``spec``'s cache."""
    return PageShape(spec.page_size, tiles_of(spec), spec.layout)


def parameters(spec: PagedMqaLogitsSpec) -> tuple[Parameter, ...]:
    """What a call takes: queries, weights, the cache and its table, lengths, the plan and the result."""
    tokens = query_extent(spec.tokens, spec.next_n)
    rows = query_extent(spec.tokens, spec.next_n, spec.heads)
    pages, table_columns, columns = (_extent(spec, name) for name in ("pages", "table_columns", "columns"))
    stored, packed = ("e2m1x2", 2) if spec.dtype == "e2m1" else ("e4m3", 1)
    table = (request_extent(spec.tokens, spec.next_n), table_columns)
    record = page_of(spec).record_bytes
    return (
        Parameter(name="q", role="in", dtype=stored, shape=(tokens, spec.heads, spec.head_dim // packed)),
        Parameter(name="q_scales", role="in", dtype="e8m0x2", shape=(spec.head_dim // PAIR, rows)),
        Parameter(name="kv_cache", role="in", dtype="uint8", shape=(pages, spec.page_size, record)),
        Parameter(name="weights", role="in", dtype="bf16", shape=(tokens, spec.heads)),
        *request_parameters(spec.tokens, spec.next_n),
        Parameter(name="block_table", role="in", dtype="int32", shape=table),
        Parameter(name="metadata", role="in", dtype="int32", shape=("boundaries", 2)),
        Parameter(name="out", role="out" if spec.clean else "inout", dtype="bf16", shape=(tokens, columns)),
    )


def _extent(spec: PagedMqaLogitsSpec, name: str) -> Extent:
    extent: Extent = getattr(spec, name)
    return name if extent == DYNAMIC else extent


def build(spec: PagedMqaLogitsSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec`` for ``target``'s core count.

    Raises :class:`DoesNotFit` if ``target``'s buffers are too small.
    """
    require_room(spec, target)
    return BuiltKernel(
        prim_func=_program(spec, target.cube_cores),
        choices=tiles_of(spec).choices(),
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: PagedMqaLogitsSpec, cores: int) -> Any:
    """The TileLang function of ``spec``: cores take the parts of the plan in turn."""
    import tilelang.ascend.language as T

    entry = Entry("paged_mqa_logits", parameters(spec))
    tiles = tiles_of(spec)
    tokens = entry.extent(query_extent(spec.tokens, spec.next_n))
    pages, table_columns, columns = (
        entry.extent(_extent(spec, name)) for name in ("pages", "table_columns", "columns")
    )
    parts = entry.extent("boundaries") - 1
    block_queries = tiles.block_queries
    requests = request_groups(tokens, spec.next_n, table_columns * spec.page_size)

    @T.macro
    def window(call: Any, query: Any) -> Any:
        return 0, requests.length_of(call, query)

    @T.macro
    def walk(call: Any, core: Any, visit: Any) -> None:
        turns = T.alloc_var("int32")
        query = T.alloc_var("int32")
        split = T.alloc_var("int32")
        end_query = T.alloc_var("int32")
        end_split = T.alloc_var("int32")
        splits = T.alloc_var("int32")
        blocks = T.alloc_var("int32")
        first = T.alloc_var("int32")
        count = T.alloc_var("int32")
        begin = T.alloc_var("int32")
        end = T.alloc_var("int32")
        steps = T.alloc_var("int32")
        cleans = T.alloc_var("int32")
        more = T.alloc_var("int32")
        # A variable, because TVM turns a loop whose extent is known to be 0 or 1 into its body.
        turns = T.truncdiv(parts + cores - 1 - core, cores)
        for turn in T.serial(turns):
            query = T.max(call.metadata[turn * cores + core, 0], 0)
            split = T.max(call.metadata[turn * cores + core, 1], 0)
            end_query = call.metadata[turn * cores + core + 1, 0]
            end_split = call.metadata[turn * cores + core + 1, 1]
            more = 1
            while more > 0:
                more = 0
                if T.And(
                    query < tokens,
                    T.Or(query < end_query, T.And(query == end_query, split < end_split)),
                ):
                    more = 1
                    held, longest = requests.request_at(call, query)
                    splits = T.truncdiv(longest + SPLIT_KEYS - 1, SPLIT_KEYS)
                    if query == end_query:
                        splits = T.min(splits, end_split)
                    begin = split * SPLIT_KEYS
                    end = T.min(longest, splits * SPLIT_KEYS)
                    steps = T.max(T.truncdiv(end - begin + STEP_KEYS - 1, STEP_KEYS), 0)
                    cleans = T.Select(split == 0, 1, 0)
                    blocks = T.truncdiv(held + block_queries - 1, block_queries)
                    for block in T.serial(blocks):
                        first = query + block * block_queries
                        count = T.min(held - block * block_queries, block_queries)
                        visit(
                            Block(
                                first=first,
                                count=count,
                                begin=begin,
                                end=end,
                                steps=steps,
                                cleans=cleans,
                                source=requests.number_of(query),
                            )
                        )
                    query += held
                    split = 0

    scores = indexer_scores(
        tiles,
        cores,
        tokens=tokens,
        columns=columns,
        clean=spec.clean,
        walk=walk,
        window=window,
        load_keys=page_loader(page_of(spec), pages),
    )

    return entry.prim_func(scores)


PAGE = KernelPage(
    computes="""
Query i belongs to a request r, whose keys lie in the pages `block_table[r]` names, `page_size` to a page, and
looks at the first L(i) of them:

    out[i, j] = sum over heads h of relu(q[i, h] . key j of r) * weights[i, h]     for j < L(i)

Without `next_n`, equal neighbours in `indices` are one request, L(i) is `context_lens[i]` and the table has a
row for each query, of which that of the request's first query counts. With `next_n` = n, request r has the
queries n*r to n*r + n-1, the table one row, and L(n*r + t) is `context_lens[r]` - n + 1 + t: the last query
looks at all. L is cut off at 0 and at what the table's columns hold, rows at the number of columns. Columns
behind a row's L keep what they hold, or become minus infinity with `clean`. Products, weights and sums are
fp32; a sum is rounded to bf16 once.

*Pages.* A page is one run of bytes: the values of its keys, then their scale pairs. Both are row-major with
`layout` "rows". With "tiles" values lie as [row bytes/32, page_size, 32] and pairs as [page_size/16,
head_dim/64, 16], as the cube takes them. Page numbers outside of the cache are moved inside.

*Plan.* `metadata` comes from paged_mqa_metadata, for any number of parts; cores take parts in turn, and a
request's keys may be spread over many of them. A score does not depend on that. Any plan whose boundaries
are in order from (0, 0) to (tokens, 0) gives the same result.
""",
    arguments={
        "q": "[tokens, heads, head_dim], row-major; e2m1 as pairs, the even one in the low nibble",
        "q_scales": "scale pairs of q: 16-bit words [head_dim/64, tokens*heads], the first 32 values in the "
        "low byte",
        "kv_cache": "bytes [pages, page_size, bytes of a key's values and scales]; see above for their order",
        "weights": "[tokens, heads], a factor for each head's score",
        "context_lens": "the number of keys that a query looks at; with `next_n` that of a request's last "
        "query",
        "indices": "the request that a query belongs to",
        "block_table": "the pages of each query's keys; with `next_n` those of each request's",
        "metadata": "query and split of 512 keys at which each part begins, and the end",
        "out": "[tokens, columns], row-major",
    },
    tolerance="small integers to the last bit of bf16; random values within calc_diff 5e-4 of float64 "
    "products of the dequantised values",
    facts=("https://github.com/deepseek-ai/DeepGEMM (fp8_fp4_paged_mqa_logits: pages, requests, limits)",),
    serves=("deep_gemm.fp8_fp4_paged_mqa_logits",),
    examples=(PagedMqaLogitsSpec(), PagedMqaLogitsSpec(heads=32, dtype="e2m1", next_n=2, clean=True)),
)

FAMILY = Family(
    name="paged_mqa_logits",
    summary="the sparse attention indexer's scores for keys in pages of a cache",
    spec_type=PagedMqaLogitsSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*INDEXER_SCORES_SOURCES, KEY_PAGES_SOURCE, REQUEST_GROUPS_SOURCE),
    page=PAGE,
)
