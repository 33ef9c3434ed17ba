"""Loaded generator: what a process has imported to compile with, identified once, and what a job expects.

The zygote identifies it, every worker inherits it. Files may be replaced at any moment, also while they are
imported. A digest taken only afterwards would vouch for files that were never read (an upgrade that is taken
back within those seconds), so digests are taken before and after, and what differs is refused.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from kaas.compiler.generator import GeneratorIdentity, identify_generator, templates_digest
from kaas.compiler.process_tree import die_with_parent
from kaas.proto.errors import CompileFailed, ToolchainMissing
from kaas.proto.passport import Generator

GENERATOR_STAGE = "generator"

_GENERATOR_PACKAGES = frozenset({"tilelang", "tvm", "tvm_ffi", "z3"})


@dataclass(frozen=True, kw_only=True)
class LoadedGenerator:
    """TileLang and our lowering, the digests of all families by name, and the modules that were there."""

    identity: GeneratorIdentity
    family_digests: Mapping[str, str]
    modules: frozenset[str] = frozenset()

    def refuse_unless(self, expected: Generator, family: str) -> None:
        """Raises :class:`CompileFailed` at stage ``generator`` naming every field that is not as
        ``expected``."""
        differing = differing_fields(expected, self.as_on_disk(family), family)
        if differing:
            raise _changed(
                f"TileLang or the sources of {family} have changed since the daemon looked at them: "
                f"{', '.join(differing)}",
                fields=differing,
            )

    def as_on_disk(self, family: str) -> LoadedGenerator:
        """What this process has loaded, with what it reads anew as that is on disk now.

        Templates are read by every device compile, and a family's source by every lowering (TileLang takes
        a program's text from its file), so they count as they are on disk. So does everything once lowering
        has imported another piece of it; that costs 0.1 s and the warm-up leaves nothing to import for the
        built-in families."""
        since = sys.modules.keys() - self.modules
        if since & _family_modules() or any(m.partition(".")[0] in _GENERATOR_PACKAGES for m in since):
            return _identified()
        return replace(
            self,
            identity=replace(self.identity, templates_digest=templates_digest()),
            family_digests={**self.family_digests, **_family_digests(family)},
        )


def load_generator(load: Callable[[], None]) -> LoadedGenerator:
    """Call ``load``, which imports everything that lowers, and identify what it imported.

    Nothing of it may have been imported before. Raises what ``load`` raises, :class:`ToolchainMissing`, and
    :class:`CompileFailed` when something changed meanwhile.
    """
    before = _identified_on_disk()
    load()
    loaded = _identified()
    if before != (loaded.identity, loaded.family_digests):
        raise _changed("TileLang or a kernel family changed while it was imported")
    return loaded


def differing_fields(expected: Generator, loaded: LoadedGenerator, family: str) -> list[str]:
    """Dotted passport paths of the fields in which ``loaded`` is not ``expected``; a family that is not there
    differs."""
    identity = loaded.identity
    ours = {
        "tilelang_version": identity.tilelang_version,
        "tilelang_native_digest": identity.native_digest,
        "templates_digest": identity.templates_digest,
        "lowering_digest": identity.lowering_digest,
        "family_digest": loaded.family_digests.get(family),
    }
    return [
        f"generator.{name}" for name, value in msgspec.structs.asdict(expected).items() if ours[name] != value
    ]


def _identified() -> LoadedGenerator:
    return LoadedGenerator(
        identity=identify_generator(), family_digests=_family_digests(), modules=frozenset(sys.modules)
    )


def _identified_on_disk() -> tuple[GeneratorIdentity, dict[str, str]] | None:
    """What is about to be imported; ``None`` when that will fail, which tells more about the reason."""
    try:
        identity = identify_generator()
    except ToolchainMissing:
        return None
    # Which modules make up a family is known only once it is imported: a forked child does that.
    own_pid = os.getpid()
    answer, ask = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            die_with_parent(signal.SIGKILL, own_pid)
            with os.fdopen(ask, "wb") as pipe:
                pipe.write(msgspec.json.encode(_family_digests()))
        os._exit(0)
    os.close(ask)
    with os.fdopen(answer, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return (identity, msgspec.json.decode(data, type=dict[str, str])) if data else None


def _family_digests(only: str | None = None) -> dict[str, str]:
    from kaas.kernel_library.registry import families, family_digest  # part of what is identified

    return {
        name: family_digest(family) for name, family in families().items() if only is None or name == only
    }


def _family_modules() -> set[str]:
    from kaas.kernel_library.registry import families

    return {module for family in families().values() for module in (family.module, *family.sources)}


def _changed(message: str, **details: list[str]) -> CompileFailed:
    return CompileFailed(
        message,
        hint="restart the daemon, so that it takes the new generator into its keys",
        stage=GENERATOR_STAGE,
        deterministic=False,
        **details,
    )
