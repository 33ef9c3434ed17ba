"""What layers want: kernels, with how often and for whom, and what no family serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kaas.client.manifest_document import ManifestEntry, Unserved
from kaas.kernel_library.spec import KernelSpec
from kaas.proto.errors import InvalidSpec
from kaas.proto.target import Target


class Layers(NamedTuple):
    """Layers of one kind: how they are called, and how many they are."""

    name: str
    total: int = 1


class WishList:
    """Gathers the kernels of a model. Equal specs become one entry with the weights added up.

    A spec that its family or one of the targets refuses is not served, for the reason that is given there.
    """

    def __init__(self, targets: Sequence[Target] = ()) -> None:
        self._targets = targets
        self._entries: dict[bytes, ManifestEntry] = {}
        self._unserved: dict[Unserved, None] = {}

    def want(self, layers: Layers, what: str, spec_type: type[KernelSpec], /, **fields: Any) -> None:
        """A launch of the kernel with these fields in each of these layers."""
        if not layers.total:
            return
        wanted_by = f"{layers.name}: {what}"
        try:
            spec = spec_type(**fields)
            for target in self._targets:
                spec.check_target(target)
        except InvalidSpec as refusal:
            family = str(spec_type.__struct_config__.tag)
            self._unserved[Unserved(wanted_by, family, refusal.message)] = None
            return
        weight = float(layers.total)
        before = self._entries.get(spec.canonical())
        if before is None:
            entry = ManifestEntry(spec, weight, (wanted_by,))
        else:
            names = before.wanted_by if wanted_by in before.wanted_by else (*before.wanted_by, wanted_by)
            entry = before._replace(weight=before.weight + weight, wanted_by=names)
        self._entries[spec.canonical()] = entry

    def lacks(self, layers: Layers, what: str, needs: str, reason: str) -> None:
        """Something that these layers need and that no family serves."""
        if layers.total:
            self._unserved[Unserved(f"{layers.name}: {what}", needs, reason)] = None

    @property
    def entries(self) -> tuple[ManifestEntry, ...]:
        """Each kernel once, in the order in which they were first wanted."""
        return tuple(self._entries.values())

    @property
    def unserved(self) -> tuple[Unserved, ...]:
        """What no family serves, each once."""
        return tuple(self._unserved)


def layers_named(numbers: Sequence[int]) -> Layers:
    """Layers by their numbers, as ``layers 0-2,5`` or ``layers 2-42 step 2``."""
    parts: list[str] = []
    rest = list(numbers)
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        run = 1
        while run < len(rest) and rest[run] - rest[run - 1] == step:
            run += 1
        if run < 3 and step > 1:
            run = 1
        first, last = rest[0], rest[run - 1]
        parts.append(str(first) if run == 1 else f"{first}-{last}" + (f" step {step}" if step > 1 else ""))
        rest = rest[run:]
    return Layers(("layer " if len(numbers) == 1 else "layers ") + ",".join(parts), len(numbers))
