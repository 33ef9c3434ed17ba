"""paged_mqa_metadata: where in the requests each part of paged_mqa_logits begins."""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang program below is a language of its own: its annotations are buffers, not types.

from typing import Annotated, Any, Literal

from kaas.kernel_library.attention.indexer_fields import (
    HEADS_MULTIPLE,
    INDEXER_FIELDS_SOURCES,
    LEAST_HEADS,
    MAX_TOKENS,
    MOST_HEADS,
    SPLIT_KEYS,
    TILE_ROWS,
    require_next_n,
)
from kaas.kernel_library.attention.request_groups import (
    MAX_NEXT_N,
    REQUEST_GROUPS_SOURCE,
    query_extent,
    request_groups,
    request_parameters,
)
from kaas.kernel_library.choice import only_one
from kaas.kernel_library.cube.cube_pipeline import PASS_CONFIGS
from kaas.kernel_library.entry import Entry
from kaas.kernel_library.family import BuiltKernel, Family, KernelPage
from kaas.kernel_library.spec import DYNAMIC, KernelSpec, require_dim, require_int, within
from kaas.proto.extents import Extent
from kaas.proto.launch import Parameter
from kaas.proto.target import Target

THREADS = 256
MAX_BOUNDARIES = 4096
MOST_KEYS = 2**30


class PagedMqaMetadataSpec(
    KernelSpec, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="paged_mqa_metadata"
):
    """Boundaries between parts of equal work, in queries and splits of 512 keys.

    ``heads`` is that of paged_mqa_logits. Requests have ``next_n`` queries each, or as ``indices`` says.
    ``boundaries`` is one more than there are parts to plan for, usually one for each cube core.

    Raises :class:`InvalidSpec` naming the field and its legal values.
    """

    heads: Annotated[int, within(LEAST_HEADS, MOST_HEADS, multiple_of=HEADS_MULTIPLE)] = 64
    next_n: Annotated[int, within(1, MAX_NEXT_N)] | None = None
    tokens: Annotated[int, within(1, MAX_TOKENS)] | Literal["dynamic"] = "dynamic"
    boundaries: Annotated[int, within(2, MAX_BOUNDARIES)] | Literal["dynamic"] = "dynamic"

    def __post_init__(self) -> None:
        require_int(self.heads, "heads", LEAST_HEADS, MOST_HEADS, multiple_of=HEADS_MULTIPLE)
        require_next_n(self.next_n, self.tokens, MAX_NEXT_N)
        require_dim(self.boundaries, "boundaries", MAX_BOUNDARIES)
        if self.boundaries != DYNAMIC:
            require_int(self.boundaries, "boundaries", 2, MAX_BOUNDARIES)


def parameters(spec: PagedMqaMetadataSpec) -> tuple[Parameter, ...]:
    """What a call takes: context_lens, indices unless ``next_n`` is given, and metadata."""
    boundaries: Extent = "boundaries" if spec.boundaries == DYNAMIC else spec.boundaries
    return (
        *request_parameters(spec.tokens, spec.next_n),
        Parameter(name="metadata", role="out", dtype="int32", shape=(boundaries, 2)),
    )


def build(spec: PagedMqaMetadataSpec, target: Target) -> BuiltKernel:
    """The TileLang program of ``spec``: one vector core, whatever ``target`` has."""
    return BuiltKernel(
        prim_func=_program(spec),
        choices={
            "threads": THREADS,
            "split_keys": SPLIT_KEYS,
            "tile_queries": TILE_ROWS // spec.heads,
            "why": only_one("one block: every boundary needs the sum of the work of all requests"),
        },
        pass_configs=dict(PASS_CONFIGS),
    )


def _program(spec: PagedMqaMetadataSpec) -> Any:
    """The TileLang function of ``spec``: threads add up the work of a chunk of queries each, then look for
    the boundaries' places."""
    import tilelang.ascend.language as T

    entry = Entry("paged_mqa_metadata", parameters(spec))
    tokens = entry.extent(query_extent(spec.tokens, spec.next_n))
    boundaries = entry.extent("boundaries" if spec.boundaries == DYNAMIC else spec.boundaries)
    per_tile = TILE_ROWS // spec.heads
    requests = request_groups(tokens, spec.next_n, MOST_KEYS)

    @T.macro
    def work_at(call: Any, first: Any) -> Any:
        """Work of a split and number of splits of the request that begins at query ``first``."""
        count, longest = requests.request_at(call, first)
        return T.truncdiv(count + per_tile - 1, per_tile), T.truncdiv(longest + SPLIT_KEYS - 1, SPLIT_KEYS)

    @T.macro
    def add_up(call: Any, sums_ub: Any) -> None:
        with T.SimtVF(threads=THREADS):
            thread = T.get_thread_binding(0)
            chunk = T.alloc_var("int32")
            total = T.alloc_var("int32")
            chunk = T.truncdiv(tokens + THREADS - 1, THREADS)
            total = 0
            for one in T.serial(chunk):
                query = thread * chunk + one
                starts = requests.is_first(call, query)
                if T.And(query < tokens, starts > 0):
                    work, splits = work_at(call, query)
                    total += work * splits
            sums_ub[thread] = total

    @T.macro
    def find(call: Any, sums_ub: Any) -> None:
        with T.SimtVF(threads=THREADS):
            thread = T.get_thread_binding(0)
            chunk = T.alloc_var("int32")
            rounds = T.alloc_var("int32")
            total = T.alloc_var("int32")
            wanted = T.alloc_var("int32")
            before = T.alloc_var("int32")
            first_chunk = T.alloc_var("int32")
            query = T.alloc_var("int32")
            split = T.alloc_var("int32")
            looking = T.alloc_var("int32")
            chunk = T.truncdiv(tokens + THREADS - 1, THREADS)
            rounds = T.truncdiv(boundaries + THREADS - 1, THREADS)
            total = 0
            for one in T.serial(THREADS):
                total += sums_ub[one]
            for turn in T.serial(rounds):
                boundary = turn * THREADS + thread
                if boundary < boundaries:
                    wanted = boundary * T.truncdiv(total, boundaries - 1) + T.min(
                        boundary, T.truncmod(total, boundaries - 1)
                    )
                    # The chunk that the wanted work lies in, and the work before it.
                    before = 0
                    first_chunk = 0
                    looking = 1
                    for one in T.serial(THREADS):
                        if looking > 0:
                            if before + sums_ub[one] > wanted:
                                looking = 0
                            else:
                                before += sums_ub[one]
                                first_chunk += 1
                    query = first_chunk * chunk
                    split = 0
                    looking = 1
                    while looking > 0:
                        if query >= tokens:
                            query = tokens
                            looking = 0
                        else:
                            if requests.is_first(call, query) > 0:
                                work, splits = work_at(call, query)
                                if before + work * splits > wanted:
                                    split = T.truncdiv(wanted - before, work)
                                    looking = 0
                                else:
                                    before += work * splits
                                    query += 1
                            else:
                                query += 1
                    # The first part begins with the first request, even if nobody looks at any key of it.
                    if boundary == 0:
                        query = 0
                        split = 0
                    call.metadata[boundary, 0] = query
                    call.metadata[boundary, 1] = split

    @T.macro
    def block(call: Any) -> None:
        with T.Kernel(1):
            sums_ub = T.alloc_shared((THREADS,), "int32")
            add_up(call, sums_ub)
            find(call, sums_ub)

    return entry.prim_func(block)


PAGE = KernelPage(
    computes=f"""
The work of a request is the number of its queries' tiles (64 rows of heads) times the number of splits of
{SPLIT_KEYS} keys that they look at. With P = `boundaries` - 1 parts and W = the work of all requests,
boundary p lies at work p*floor(W/P) + min(p, W mod P), rounded down to whole splits:

    metadata[p] = (first query of the request, number of the split in it)

Part p of paged_mqa_logits is what lies between boundaries p and p+1. The first boundary is (0, 0); one behind
all work is (tokens, 0). Parts that are smaller than a split are empty. P need not be the number of cores: the
cores of the consumer take parts in turn.

A request's queries look at no more keys than the one of them that looks at the most.
""",
    arguments={
        "context_lens": "the number of keys that a query looks at; with `next_n` that of a request's last "
        "query",
        "indices": "the request that a query belongs to; equal neighbours are one request",
        "metadata": "query and split of each boundary",
    },
    tolerance="exact",
    facts=(
        "https://github.com/deepseek-ai/DeepGEMM (get_paged_mqa_logits_metadata: pairs of query and split)",
    ),
    serves=("deep_gemm.get_paged_mqa_logits_metadata",),
    examples=(PagedMqaMetadataSpec(), PagedMqaMetadataSpec(heads=32, next_n=2)),
)

FAMILY = Family(
    name="paged_mqa_metadata",
    summary="where in the requests each part of the paged indexer's scores begins",
    spec_type=PagedMqaMetadataSpec,
    parameters=parameters,
    build=build,
    module=__name__,
    sources=(*INDEXER_FIELDS_SOURCES, REQUEST_GROUPS_SOURCE),
    page=PAGE,
)
