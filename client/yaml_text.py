"""YAML and JSON text of people: parsed with lines, without aliases; written so that it reads back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaas.proto.errors import InvalidManifest

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 16 << 20


def read_text(path: Path, what: str) -> str:
    """The text of a file, ``-`` being standard input. Raises :class:`InvalidManifest`."""
    import sys

    try:
        return sys.stdin.buffer.read().decode() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidManifest(f"the {what} {path} cannot be read: {reason}", path=str(path)) from None


def load_yaml(text: str, name: str) -> Any:
    """One YAML or JSON document as plain values. Raises :class:`InvalidManifest` with the line."""
    node = compose(text, name)
    return None if node is None else plain(node)


def compose(text: str, name: str) -> yaml.Node | None:
    """One YAML or JSON document as nodes, which know their lines. Raises :class:`InvalidManifest`."""
    import yaml

    if len(text) > MAX_BYTES:
        raise InvalidManifest(f"{name}: larger than {MAX_BYTES} bytes")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_loader())):
            # Aliases let a short file stand for an endless one.
            raise InvalidManifest(f"{name}: YAML aliases are not supported")
        return yaml.compose(text, Loader=_loader())
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise InvalidManifest(
            f"{name}{where}: not YAML: {problem}", line=mark.line + 1 if mark else None
        ) from None


def plain(node: yaml.Node) -> Any:
    """The plain value of a node. Raises :class:`InvalidManifest` with the line; also for a repeated key."""
    import yaml

    loader = _loader()("")
    try:
        _require_unique_keys(node)
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or error
        line = line_of(node)
        raise InvalidManifest(f"line {line}: {problem}", line=line) from None
    finally:
        loader.dispose()


def line_of(node: yaml.Node, path: Sequence[str] = ()) -> int:
    """The line where a node begins, or the field of it that ``path`` leads to, as far as there is one."""
    import yaml

    for name in path:
        if not isinstance(node, yaml.MappingNode):
            break
        keys = {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        if name not in keys:
            break
        key, value = keys[name]
        # A scalar's fault is where its field is; a mapping's own line is that of its first field.
        node = value if isinstance(value, yaml.MappingNode) else key
    return int(node.start_mark.line) + 1


def _require_unique_keys(node: yaml.Node) -> None:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _require_unique_keys(item)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = line_of(key)
                    raise InvalidManifest(f"line {line}: {key.value[:80]!r} is there twice", line=line)
                seen.add(key.value)
            _require_unique_keys(value)


def flow_text(value: Any) -> str:
    """A value as one line of YAML which :func:`load_yaml` reads back as the same value."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes text that the loader would take for a number."""

    _add_exponents(Dumper)
    text: str = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, sort_keys=False, width=2**31 - 1, allow_unicode=True
    )
    return text.removesuffix("...\n").rstrip("\n")


def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe YAML in which ``1e-6`` is the number that everybody but YAML 1.1 takes it for."""

    _add_exponents(Loader)
    return Loader


def _add_exponents(resolver: type[yaml.SafeLoader] | type[yaml.SafeDumper]) -> None:
    resolver.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9][0-9]*(?:\.[0-9]*)?[eE][-+]?[0-9]+"),
        list("-+0123456789"),
    )
