"""Matrix views: parts of tensors in global memory that copies take for whole matrices.

A copy clamps itself to the extents of the buffer it reads or writes, and fills what is missing of its tile in
L1 with zeros. A view with the extents of the part therefore keeps a tile inside the part at no further cost.
"""

from typing import Any


class Slab:
    """One matrix of a stack: ``tensor`` with ``axis`` fixed at ``index``, sliced like a matrix."""

    def __init__(self, tensor: Any, axis: int, index: Any) -> None:
        self._tensor, self._axis, self._index = tensor, axis, index

    def __getitem__(self, region: tuple[slice, slice]) -> Any:
        position: list[Any] = list(region)
        position.insert(self._axis, self._index)
        return self._tensor[tuple(position)]


class Head:
    """The first ``rows`` rows of ``tensor``, sliced like the tensor; ``rows`` is known at run time only."""

    def __init__(self, tensor: Any, rows: Any) -> None:
        self._tensor, self._rows = tensor, rows

    def __getitem__(self, region: Any) -> Any:
        import tilelang.ascend.language as T

        # Made anew for each copy: a buffer that is bound to a name of its own renames the kernel's argument.
        tensor = self._tensor
        return T.Tensor((self._rows, *tensor.shape[1:]), tensor.dtype, tensor.data)[region]
