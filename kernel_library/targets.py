"""The SKU table: what each Ascend SoC name means, for hosts where no device can be asked.

Core counts and L2 sizes come from the public DVM runtime's fallback table and CANN's platform sources;
on-chip sizes from the asc-devkit architecture page for NPU arch 3510. A live device always wins over this
table (:mod:`kaas.compiler.device_probe`).
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator

from kaas.proto.errors import UnsupportedTarget
from kaas.proto.target import Target

MIB = 1 << 20
KIB = 1 << 10

SUPPORTED_ARCH = "dav-3510"

# (cube cores, L2 MiB) -> SoC names. Every part of this generation has two vector cores per cube core.
_ASCEND950: dict[tuple[int, int], tuple[str, ...]] = {
    (36, 128): (
        "Ascend950PR_9599",
        *(f"Ascend950DT_{bin_}" for bin_ in ("9591", "9592", "9595", "9596", "95A1", "95A2")),
    ),
    (32, 128): ("Ascend950PR_9589", *(f"Ascend950DT_{bin_}" for bin_ in ("9581", "9582", "9585", "9586"))),
    (32, 112): ("Ascend950PR_958b", *(f"Ascend950DT_{bin_}" for bin_ in ("9583", "9584", "9587", "9588"))),
    (28, 128): ("Ascend950PR_9579", *(f"Ascend950DT_{bin_}" for bin_ in ("9571", "9572", "9575", "9576"))),
    (28, 112): (
        *(f"Ascend950PR_{bin_}" for bin_ in ("957b", "957bx", "957c")),
        *(f"Ascend950DT_{bin_}" for bin_ in ("9573", "9574", "9577", "9578")),
    ),
    (28, 96): ("Ascend950PR_957d",),
    (8, 32): ("Ascend950DT_950x", "Ascend950DT_950y"),
    (4, 16): ("Ascend950PR_950z",),
}

# Known parts of other generations: recognised, so that the refusal can say why.
_OTHER_GENERATIONS: dict[str, str] = {
    **{f"Ascend910B{bin_}": "dav-2201" for bin_ in ("1", "2", "2C", "3", "4", "4-1")},
    **{
        f"Ascend910_{bin_}": "dav-2201"
        for bin_ in ("9391", "9392", "9381", "9382", "9372", "9361", "9362", "9363")
    },
    **{f"Ascend310P{bin_}": "dav-2002" for bin_ in ("1", "2", "3", "4", "5", "7")},
    **{f"Ascend310B{bin_}": "dav-3002" for bin_ in ("1", "2", "3", "4")},
    **dict.fromkeys(("Ascend910A", "Ascend910ProA", "Ascend910PremiumA", "Ascend910ProB"), "dav-1001"),
}


def _table() -> Iterator[Target]:
    for (cube_cores, l2_mib), names in _ASCEND950.items():
        for name in names:
            yield ascend950(name, cube_cores=cube_cores, vector_cores=2 * cube_cores, l2_bytes=l2_mib * MIB)


def ascend950(
    soc_name: str, *, cube_cores: int, vector_cores: int, l2_bytes: int, ub_bytes: int = 248 * KIB
) -> Target:
    """A target of NPU arch 3510. ``ub_bytes`` is what kernels may use of the 256 KiB unified buffer."""
    return Target(
        soc_name=soc_name,
        npu_arch=SUPPORTED_ARCH,
        cube_cores=cube_cores,
        vector_cores=vector_cores,
        l0a_bytes=64 * KIB,
        l0b_bytes=64 * KIB,
        l0c_bytes=256 * KIB,
        l1_bytes=512 * KIB,
        ub_bytes=ub_bytes,
        l2_bytes=l2_bytes,
    )


TARGETS: dict[str, Target] = {target.soc_name: target for target in _table()}
_BY_FOLDED_NAME = {name.casefold(): target for name, target in TARGETS.items()}
_OTHER_BY_FOLDED_NAME = {name.casefold(): (name, arch) for name, arch in _OTHER_GENERATIONS.items()}


def target_named(soc_name: str) -> Target:
    """The table's target for a SoC name, whatever its case.

    Raises :class:`UnsupportedTarget` with near matches, or the reason a known part is not supported.
    """
    if not isinstance(soc_name, str) or len(soc_name) > 80:
        raise UnsupportedTarget("a SoC name is a short string such as Ascend950PR_9579", field="soc_name")
    folded = soc_name.strip().casefold()
    target = _BY_FOLDED_NAME.get(folded)
    if target is not None:
        return target
    if folded in _OTHER_BY_FOLDED_NAME:
        name, arch = _OTHER_BY_FOLDED_NAME[folded]
        raise UnsupportedTarget(
            f"{name} ({arch}) is not supported: the kernels need an Ascend 950 part ({SUPPORTED_ARCH})",
            field="soc_name",
            arch=arch,
        )
    near = _near(folded)
    suggestion = f"; did you mean {', '.join(near)}?" if near else f"; legal: {', '.join(sorted(TARGETS))}"
    raise UnsupportedTarget(
        f"unknown SoC name {soc_name!r}{suggestion}", field="soc_name", near=near, legal=sorted(TARGETS)
    )


def _near(folded: str) -> list[str]:
    """Up to four similar names; among equally similar ones those that agree longest from the start."""
    if len(folded) > 64:
        return []
    similar = difflib.get_close_matches(folded, _BY_FOLDED_NAME, n=len(TARGETS), cutoff=0.7)
    similarity: dict[str, tuple[float, int]] = {}
    for name in similar:
        agreeing = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(name, folded, strict=False))
        similarity[name] = difflib.SequenceMatcher(None, name, folded).ratio(), len(list(agreeing))
    ranked = sorted(similar, key=lambda name: similarity[name], reverse=True)
    return [_BY_FOLDED_NAME[name].soc_name for name in ranked[:4]]
