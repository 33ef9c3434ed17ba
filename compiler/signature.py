"""The device entry's signature, read from the generated Ascend C and matched with a kernel's parameters.

Launch arguments are packed in the order of the generated signature: buffers and scalars by name, then dynamic
symbols. That order is TileLang's, not the program's, so the source itself is the only authority.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from kaas.proto.dtypes import ELEMENT_TYPES
from kaas.proto.extents import formula_of
from kaas.proto.launch import Parameter, SignatureArgument

_ENTRY = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:__\w+__(?:\s*\([^()]*\))?\s+)*'
    r"void\s+(?P<name>\w+)\s*\((?P<arguments>[^()]*)\)\s*\{"
)
_ARGUMENT = re.compile(
    r"(?P<gm>__gm__\s+)?(?:const\s+)?(?P<type>\w+)\s*(?P<star>\*)?\s*(?:__restrict__\s+)?(?P<name>\w+)"
)

_SYMBOL_TYPES = {"int": "int32", "int32_t": "int32", "int64_t": "int64"}
_KNOWN_TYPES = {name for element in ELEMENT_TYPES.values() for name in element.device_names}


class SignatureMismatch(Exception):
    """The generated entry is not what the kernel's parameters say; the text says which part."""


def entries(source: str) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Every kernel entry of a source: its name and its arguments as (name, C type, is a pointer)."""
    found = []
    for match in _ENTRY.finditer(source):
        texts = [text.strip() for text in match["arguments"].split(",") if text.strip()]
        found.append((match["name"], [_argument(text, match["name"]) for text in texts]))
    return found


def match_signature(
    source: str, entry: str, parameters: Sequence[Parameter]
) -> tuple[SignatureArgument, ...]:
    """The arguments of ``entry`` in device order, each tied to a parameter or a dynamic symbol by name.

    Raises :class:`SignatureMismatch` for an unknown argument, another dtype, or a parameter that is left out.
    """
    known = dict(entries(source))
    if entry not in known or len(known) != 1:
        raise SignatureMismatch(f"the source defines {sorted(known) or 'no kernel'}, not {entry} alone")
    by_name = {parameter.name: parameter for parameter in parameters}
    symbols = set(dynamic_symbols(parameters))
    matched = [
        _matched(name, device_type, is_pointer, by_name, symbols)
        for name, device_type, is_pointer in known[entry]
    ]
    missing = by_name.keys() - {argument.name for argument in matched}
    if missing:
        raise SignatureMismatch(f"{entry} does not take {', '.join(sorted(missing))}")
    return tuple(matched)


def dynamic_symbols(parameters: Iterable[Parameter]) -> list[str]:
    """Names of the dynamic extents, in order of first use."""
    texts = [extent for parameter in parameters for extent in parameter.shape if isinstance(extent, str)]
    formulas = [(text, formula_of(text)) for text in texts]
    return list(dict.fromkeys(formula.symbol if formula else text for text, formula in formulas))


def _matched(
    name: str, device_type: str, is_pointer: bool, by_name: dict[str, Parameter], symbols: set[str]
) -> SignatureArgument:
    parameter = by_name.get(name)
    if parameter is None:
        if name not in symbols or is_pointer:
            raise SignatureMismatch(f"argument {name} is neither a parameter nor a dynamic extent")
        dtype = _SYMBOL_TYPES.get(device_type)
        if dtype is None:
            raise SignatureMismatch(f"dynamic extent {name} is passed as {device_type}")
        return SignatureArgument(name=name, kind="symbol", dtype=dtype)
    if is_pointer != (parameter.role != "scalar"):
        raise SignatureMismatch(
            f"argument {name} is {'a' if is_pointer else 'no'} pointer, but {parameter.role}"
        )
    if device_type not in ELEMENT_TYPES[parameter.dtype].device_names:
        raise SignatureMismatch(f"argument {name} is {device_type}, the parameter {parameter.dtype}")
    kind: Literal["pointer", "scalar"] = "pointer" if is_pointer else "scalar"
    return SignatureArgument(name=name, kind=kind, dtype=parameter.dtype)


def _argument(text: str, entry: str) -> tuple[str, str, bool]:
    match = _ARGUMENT.fullmatch(text)
    if match is None or bool(match["gm"]) != bool(match["star"]):
        raise SignatureMismatch(f"{entry} takes {text!r}, which cannot be read")
    if match["type"] not in _KNOWN_TYPES:
        raise SignatureMismatch(f"{entry} takes {text!r}, of a type that no launch can pass")
    return match["name"], match["type"], bool(match["star"])
