"""Which NPU this node has: ask ACL, then npu-smi, then the configuration.

A live device always wins over the SKU table, and a configured name that contradicts it is refused. The CPU
twin is never asked: it stands for whichever SKU the configuration names.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kaas.compiler.toolkit import Toolkit
from kaas.kernel_library.targets import SUPPORTED_ARCH, TARGETS, ascend950, target_named
from kaas.proto.errors import UnsupportedTarget
from kaas.proto.target import Target

log = logging.getLogger(__name__)

TWIN_DEFAULT_SOC = "Ascend950PR_9579"

_ACL_DEADLINE_S = 60.0
_NPU_SMI_DEADLINE_S = 20.0
_RESERVED_UB_BYTES = 8 << 10
"""Of a 256 KiB unified buffer kernels may use 248 KiB; the rest belongs to the runtime (SIMT, printf)."""


def detect_target(
    toolkit: Toolkit, configured: str | None, environ: Mapping[str, str] = os.environ
) -> tuple[Target, str]:
    """The target to compile for and where that is known from: ``acl``, ``npu-smi``, ``configured`` or
    ``default``.

    Raises :class:`UnsupportedTarget` for an unknown or unsupported part, when the configured name contradicts
    the device, and when a CANN node shows no device and names none.
    """
    wanted = target_named(configured) if configured else None
    if toolkit.kind == "twin":
        return (wanted, "configured") if wanted else (target_named(TWIN_DEFAULT_SOC), "default")
    live, source = live_target(toolkit, environ)
    if live is not None:
        if wanted is not None and wanted.soc_name.casefold() != live.soc_name.casefold():
            raise UnsupportedTarget(
                f"soc_name is configured as {wanted.soc_name}, but this node's device is {live.soc_name}",
                hint="remove soc_name from the configuration, or correct it",
                field="soc_name",
                configured=wanted.soc_name,
                live=live.soc_name,
            )
        return live, source
    if wanted is not None:
        return wanted, "configured"
    raise UnsupportedTarget(
        "no Ascend device answers on this node, so its SKU is unknown",
        hint="check npu-smi info, or configure soc_name to compile for a SKU without a device",
        field="soc_name",
        legal=sorted(TARGETS),
    )


def live_target(toolkit: Toolkit, environ: Mapping[str, str]) -> tuple[Target | None, str]:
    """The device's own target, or ``None`` when no device answers."""
    facts = _ask_acl(toolkit, environ)
    if facts is not None:
        return target_from_facts(facts), "acl"
    name = _ask_npu_smi(environ)
    if name is not None:
        return target_named(name), "npu-smi"
    return None, ""


def target_from_facts(facts: Mapping[str, Any]) -> Target:
    """A target from what ACL said: the table's row, corrected by the device's own numbers.

    A SKU that the table does not know is accepted when the device says its arch and core counts.
    """
    name = str(facts["soc_name"])
    arch = facts.get("npu_arch")
    counts = {field: facts[field] for field in ("cube_cores", "vector_cores", "l2_bytes") if field in facts}
    try:
        known = target_named(name)
    except UnsupportedTarget:
        if f"dav-{arch}" != SUPPORTED_ARCH or len(counts) < 3:
            raise
        known = ascend950(name, **counts)
    if arch is not None and f"dav-{arch}" != known.npu_arch:
        raise UnsupportedTarget(
            f"{name} reports NPU arch {arch}; kernels are built for {known.npu_arch}", field="npu_arch"
        )
    if "ub_bytes" in facts:
        reported = int(facts["ub_bytes"])
        # Runtimes report either the whole buffer or the part that kernels may use.
        counts["ub_bytes"] = (
            reported if reported <= known.ub_bytes else min(known.ub_bytes, reported - _RESERVED_UB_BYTES)
        )
    return msgspec.structs.replace(known, **counts)


def _ask_acl(toolkit: Toolkit, environ: Mapping[str, str]) -> dict[str, Any] | None:
    script = Path(__file__).with_name("acl_query.py")
    libraries = [str(toolkit.acl_library.parent), environ.get("LD_LIBRARY_PATH", "")]
    output = _output_of(
        [sys.executable, "-I", str(script), str(toolkit.acl_library)],
        {**environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))},
        _ACL_DEADLINE_S,
    )
    try:
        facts = json.loads((output or "").strip().rpartition("\n")[2])
    except ValueError:
        return None
    if not isinstance(facts, dict) or not facts.get("soc_name"):
        reason = facts.get("error") if isinstance(facts, dict) else facts
        log.info("ACL shows no device: %s", reason)
        return None
    return facts


def _ask_npu_smi(environ: Mapping[str, str]) -> str | None:
    npu_smi = shutil.which("npu-smi", path=environ.get("PATH", "") + ":/usr/local/sbin:/usr/local/bin")
    if npu_smi is None:
        return None
    listing = _output_of([npu_smi, "info", "-l"], environ, _NPU_SMI_DEADLINE_S)
    numbers = parse_npu_list(listing or "")
    if not numbers:
        return None
    board = [npu_smi, "info", "-t", "board", "-i", str(numbers[0])]
    for command in (board, [*board, "-c", "0"]):
        # Drivers of the 950 refuse -c; older parts name the chip only with it.
        name = soc_name_from_board(_output_of(command, environ, _NPU_SMI_DEADLINE_S) or "")
        if name is not None:
            return name
    return None


def parse_npu_list(text: str) -> list[int]:
    """NPU ids in the output of ``npu-smi info -l``."""
    return [int(value) for value in re.findall(r"^\s*NPU ID\s*:\s*(\d+)\s*$", text, re.MULTILINE)]


def soc_name_from_board(text: str) -> str | None:
    """The SoC name in the output of ``npu-smi info -t board``, or ``None``.

    ``<Chip Name>_<NPU Name>`` where there is an NPU name (Ascend 950, Atlas A3), else ``<Chip Type><Chip
    Name>`` (Atlas A2, 310P).
    """
    fields = {
        key.strip().casefold(): value.strip()
        for key, separator, value in (line.partition(":") for line in text.splitlines())
        if separator
    }
    chip, npu, kind = (_known(fields.get(name)) for name in ("chip name", "npu name", "chip type"))
    if chip is None:
        return None
    prefix = chip if chip.casefold().startswith("ascend") else f"{kind or 'Ascend'}{chip}"
    return f"{prefix}_{npu}" if npu else prefix


def _known(value: str | None) -> str | None:
    return value if value and value.casefold() not in ("na", "n/a", "-", "unknown") else None


def _output_of(command: Sequence[str], environ: Mapping[str, str], deadline_s: float) -> str | None:
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=deadline_s,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s did not answer: %s", command[0], error)
        return None
    return done.stdout.decode(errors="replace")
