"""Key pages: keys with their scales in pages of a cache, brought to L1 as a step of the indexer.

A page is one run of bytes: first the values of all its keys, then the scale pairs of all its keys. ``rows``
has the keys one behind the other in both. ``tiles`` has values in columns of 32 bytes, [row_bytes/32, page,
32], and scale pairs as the cube takes them, [page/16, pairs, 16]: copies then move whole runs of blocks.
"""

# mypy: disable-error-code="valid-type, untyped-decorator"
# The TileLang macros below are a language of their own: their annotations are buffers, not types.

from collections.abc import Callable
from typing import Any

import msgspec

from kaas.kernel_library.attention.indexer_fields import FRACTAL, STEP_KEYS, IndexerTiles
from kaas.kernel_library.attention.indexer_scores import TILELANG_DTYPES, Block, key_slot
from kaas.kernel_library.cube.cube_pipeline import Rings
from kaas.kernel_library.entry import looked_at

KEY_PAGES_SOURCE = "kaas.kernel_library.attention.key_pages"
"""For ``Family.sources`` of a family built on this module."""

PAGE_SIZES = (64, 128)
LAYOUTS = ("rows", "tiles")
BLOCK_BYTES = 32


class PageShape(msgspec.Struct, frozen=True):
    """A page of ``size`` keys of ``tiles`` in ``layout``."""

    size: int
    tiles: IndexerTiles
    layout: str

    @property
    def record_bytes(self) -> int:
        """Of a key: its values and its scale pairs."""
        return self.tiles.row_bytes + 2 * self.tiles.pairs

    @property
    def value_bytes(self) -> int:
        """Of a page's values."""
        return self.size * self.tiles.row_bytes

    def rows(self, row_bytes: int) -> tuple[int, int]:
        """A page, and a page's values, in rows of ``row_bytes``."""
        return self.size * self.record_bytes // row_bytes, self.value_bytes // row_bytes


def page_loader(page: PageShape, pages: Any) -> Callable[[Rings, Any, Block, Any], Any]:
    """``load_keys`` of :func:`indexer_scores` for a ``kv_cache`` of ``pages`` pages and a ``block_table``.

    ``block.source`` is the row of the table. No page outside of the cache is read, whatever the table says.
    """
    import tilelang.ascend.language as T

    tiles, size = page.tiles, page.size
    dtype, pairs = TILELANG_DTYPES[tiles.dtype], tiles.pairs

    # Pages are an axis of their own in every view: copies then lie inside of one, whatever its number, and
    # need neither clamps nor fills behind them.
    @T.macro
    def load_single_scales(rings: Any, call: Any, place: int, page_id: Any) -> None:
        """Scales of one pair to a key, which lie one behind the other as they do at the cube."""
        whole, first = page.rows(2)
        T.copy(
            looked_at(call.kv_cache, (pages, 1, whole), "uint16")[page_id, :, first : first + size],
            rings.k_scales_l1[key_slot(rings), place : place + size, :],
            transpose=True,
        )

    @T.macro
    def load_rows(rings: Any, call: Any, place: int, page_id: Any) -> None:
        whole, _ = page.rows(tiles.row_bytes)
        T.copy(
            looked_at(call.kv_cache, (pages, whole, tiles.head_dim), dtype)[page_id, 0:size, :],
            rings.k_l1[key_slot(rings), place : place + size, :],
        )
        if pairs > 1:
            whole_scales, first = page.rows(2 * pairs)
            T.copy(
                looked_at(call.kv_cache, (pages, whole_scales, pairs), "uint16")[
                    page_id, first : first + size, :
                ],
                rings.k_scales_l1[key_slot(rings), place : place + size, :],
            )
        else:
            load_single_scales(rings, call, place, page_id)

    @T.macro
    def load_tiles(rings: Any, call: Any, place: int, page_id: Any) -> None:
        whole, _ = page.rows(BLOCK_BYTES)
        width = tiles.head_dim * BLOCK_BYTES // tiles.row_bytes
        # Not unrolled: behind a copy to the very first column of L1 TileLang would clear the second one.
        for column in T.serial(tiles.row_bytes // BLOCK_BYTES):
            T.copy(
                looked_at(call.kv_cache, (pages, whole, width), dtype)[
                    page_id, column * size : column * size + size, :
                ],
                rings.k_l1[key_slot(rings), place : place + size, column * width : column * width + width],
            )
        if pairs > 1:
            whole_scales, first = page.rows(2 * FRACTAL)
            for fractal in T.serial(size // FRACTAL):
                at = first + fractal * pairs
                row = place + fractal * FRACTAL
                T.copy(
                    looked_at(call.kv_cache, (pages, whole_scales, FRACTAL), "uint16")[
                        page_id, at : at + pairs, :
                    ],
                    rings.k_scales_l1[key_slot(rings), row : row + FRACTAL, :],
                    transpose=True,
                )
        else:
            load_single_scales(rings, call, place, page_id)

    @T.macro
    def load_keys(rings: Any, call: Any, block: Any, key: Any) -> None:
        page_id = T.alloc_var("int32")
        for i in T.unroll(STEP_KEYS // size, explicit=True):
            if key + i * size < block.end:
                page_id = call.block_table[block.source, T.truncdiv(key, size) + i]
                page_id = T.min(T.max(page_id, 0), pages - 1)
                if page.layout == "rows":
                    load_rows(rings, call, i * size, page_id)
                else:
                    load_tiles(rings, call, i * size, page_id)

    load: Callable[[Rings, Any, Block, Any], Any] = load_keys
    return load
