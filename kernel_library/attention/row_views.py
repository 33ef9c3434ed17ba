"""Row views: tensors of any rank in global memory that copies take for matrices of rows.

A copy clamps itself to the extents of what it reads or writes, and fills what is missing of its tile in L1
with zeros. A view that ends with the last row of a request keeps a tile inside it at no further cost.
"""

from typing import Any


class FlatRows:
    """``tensor`` as [rows, its last extent], whatever its leading axes; ``rows`` may be an expression."""

    def __init__(self, tensor: Any, rows: Any) -> None:
        self._tensor, self._rows = tensor, rows

    def __getitem__(self, region: tuple[slice, slice]) -> Any:
        import tilelang.ascend.language as T

        # Made anew for each copy: a buffer that is bound to a name of its own renames the kernel's argument.
        tensor = self._tensor
        return T.Tensor((self._rows, tensor.shape[-1]), tensor.dtype, tensor.data)[region]


class HeadRows:
    """Rows of one head of a [tokens, heads, width] tensor that ends with token ``end``."""

    def __init__(self, tensor: Any, head: Any, end: Any) -> None:
        self._tensor, self._head, self._end = tensor, head, end

    def __getitem__(self, region: tuple[slice, slice]) -> Any:
        import tilelang.ascend.language as T

        tensor, (rows, columns) = self._tensor, region
        whole = T.Tensor((self._end, *tensor.shape[1:]), tensor.dtype, tensor.data)
        return whole[rows, self._head, columns]
