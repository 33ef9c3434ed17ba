"""Kernel pages: one Markdown page per family and an index by upstream function, made from the registry.

``python -m kaas.kernel_library.kernel_pages docs`` writes ``docs/kernels.md`` and ``docs/kernels/``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kaas.kernel_library.composite import Composite, CompositeSpec
from kaas.kernel_library.family import Family, KernelPage
from kaas.kernel_library.registry import composite_named, composite_names, families, family_named, json_schema
from kaas.kernel_library.spec import Spec
from kaas.kernel_library.upstream import COMPONENTS, NOT_SERVED
from kaas.proto.launch import Parameter

_NOTE = (
    "<!-- Generated from the registry by `scripts/kernel-pages`; edit the family's page, not this file. -->"
)


def page_text(family: Family) -> str:
    """The page of one family; shorter for a family of another package that brings no page."""
    lines = [f"# {family.name}", "", f"{family.summary[0].upper()}{family.summary[1:]}.", ""]
    if family.page is not None:
        lines += [family.page.computes.strip(), ""]
    lines += ["## Spec", "", *_spec_section(family.spec_type), ""]
    if family.page is not None:
        lines += [*_arguments(family, family.page), "", *_proof(family, family.page)]
    return "\n".join(lines).rstrip() + "\n"


def composite_text(composite: Composite) -> str:
    """The page of one composite: its kernels and the arguments that they share."""
    lines = [f"# {composite.name}", "", f"{composite.summary[0].upper()}{composite.summary[1:]}.", ""]
    lines += [composite.computes.strip(), "", "## Spec", "", *_spec_section(composite.spec_type)]
    for spec in composite.examples:
        lines += ["", "## Kernels", "", f"`{_spec_text(spec)}` is, in this order:", ""]
        lines += ["| stage | kernel |", "|---|---|"]
        lines += [f"| {stage.name} | `{_spec_text(stage.spec)}` |" for stage in spec.stages()]
        lines += ["", "## Call", "", "By name:", ""]
        lines += ["| argument | role | dtype | shape | what it is |", "|---|---|---|---|---|"]
        lines += list(_shared_arguments(composite, spec))
    return "\n".join(lines).rstrip() + "\n"


def _shared_arguments(composite: Composite, spec: CompositeSpec) -> Iterator[str]:
    uses: dict[str, list[Parameter]] = {}
    for stage in spec.stages():
        for parameter in family_named(stage.spec.family).parameters(stage.spec):
            if parameter.name in stage.arguments:
                uses.setdefault(stage.arguments[parameter.name], []).append(parameter)
    for name, parameters in uses.items():
        first = parameters[0]
        role = "between stages" if first.role == "out" and len(parameters) > 1 else first.role
        yield _row_of(name, role, first, composite.arguments[name])


def _spec_section(spec_type: type[Spec]) -> Iterator[str]:
    if spec_type.__module__.startswith("kaas."):
        yield f"In Python `kaas.{spec_type.__name__}(...)`, with these fields:"
        yield ""
    yield from _spec_table(json_schema(spec_type))


def _spec_table(schema: Mapping[str, Any]) -> Iterator[str]:
    yield "| field | legal values | default |"
    yield "|---|---|---|"
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        if name == "family":
            continue
        default = "required" if name in required else f"`{json.dumps(field.get('default'))}`"
        yield f"| `{name}` | {_legal(field, schema)} | {default} |"


def _legal(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    return " or ".join(_option(option, schema) for option in field.get("anyOf", [field]))


def _option(option: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in option:
        nested = schema["$defs"][option["$ref"].rpartition("/")[2]]
        inner = (f"`{name}`: {_legal(field, schema)}" for name, field in nested["properties"].items())
        return f"an object (in Python a `{option['$ref'].rpartition('/')[2]}`) of " + ", ".join(inner)
    if "enum" in option:
        return ", ".join(f"`{json.dumps(value)}`" for value in option["enum"])
    kind = option.get("type")
    if kind in ("integer", "number"):
        text = "an integer" if kind == "integer" else "a float"
        if "minimum" in option:
            text += f" from {option['minimum']} to {option['maximum']}"
        if "multipleOf" in option:
            text += f", a multiple of {option['multipleOf']}"
        return text
    return {"boolean": "`true`, `false`", "null": "`null`"}.get(str(kind), str(kind))


def _arguments(family: Family, page: KernelPage) -> Iterator[str]:
    yield "## Call"
    for spec in page.examples:
        yield ""
        yield f"`{_spec_text(spec)}` takes, in this order:"
        yield ""
        yield "| argument | role | dtype | shape | what it is |"
        yield "|---|---|---|---|---|"
        for parameter in family.parameters(spec):
            meaning = page.arguments.get(parameter.name, "")
            yield _row_of(parameter.name, parameter.role, parameter, meaning)


def _row_of(name: str, role: str, parameter: Parameter, meaning: str) -> str:
    shape = f"[{', '.join(map(str, parameter.shape))}]" if parameter.role != "scalar" else "-"
    return f"| `{name}` | {role} | {parameter.dtype} | {shape} | {meaning} |"


def _proof(family: Family, page: KernelPage) -> Iterator[str]:
    yield "## Reference and tolerance"
    yield ""
    yield f"Reference: `kaas.kernel_library.references.{family.name}`, in plain torch."
    yield ""
    yield page.tolerance.strip()
    yield ""
    if page.serves:
        yield "## Stands for"
        yield ""
        yield from (f"- `{name}`" for name in page.serves)
        yield ""
    yield "## Where the facts come from"
    yield ""
    yield from (f"- {fact}" for fact in page.facts)


def _spec_text(spec: Spec) -> str:
    """A spec in the words of the command line, without its defaults."""
    record = spec.to_record()
    defaults = {
        name: field.get("default") for name, field in json_schema(type(spec)).get("properties", {}).items()
    }
    words = [
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in record.items()
        if name != "family"
        and not (name in defaults and defaults[name] == value and value is not None)
        and value is not None
    ]
    return " ".join([spec.family, *words])


def index_text() -> str:
    """``docs/kernels.md``: the families, and which spec serves each upstream function or why none does."""
    known = sorted(families().items())
    lines = [
        _NOTE,
        "",
        "# Kernels",
        "",
        "What can be compiled, family by family. How kernels are written is told in",
        "[writing-kernels.md](writing-kernels.md).",
        "",
        "| family | what it computes |",
        "|---|---|",
        *(f"| [{name}](kernels/{name}.md) | {family.summary} |" for name, family in known),
    ]
    if composite_names():
        lines += ["", "Several kernels from one spec:", "", "| composite | what it computes |", "|---|---|"]
        lines += [
            f"| [{name}](kernels/{name}.md) | {composite_named(name).summary} |" for name in composite_names()
        ]
    serving: dict[str, list[str]] = {}
    for name, family in known:
        for function in family.page.serves if family.page else ():
            serving.setdefault(function, []).append(name)
    for component, functions in COMPONENTS.items():
        lines += ["", f"## {component}", "", "| upstream | served by |", "|---|---|"]
        for function in functions:
            lines.append(f"| `{function}` | {_served(serving.get(function, []), NOT_SERVED.get(function))} |")
    return "\n".join(lines) + "\n"


def _served(names: list[str], reason: str | None) -> str:
    links = ", ".join(f"[{name}](kernels/{name}.md)" for name in names)
    if links and reason:
        return f"{links}; {reason}"
    return links or f"not served: {reason or '?'}"


def pages() -> dict[str, str]:
    """Every generated file of ``docs`` by its relative path."""
    built_in = {
        f"kernels/{name}.md": f"{_NOTE}\n\n{page_text(family)}"
        for name, family in sorted(families().items())
        if family.module.startswith("kaas.")
    }
    of_composites = {
        f"kernels/{name}.md": f"{_NOTE}\n\n{composite_text(composite_named(name))}"
        for name in composite_names()
    }
    return {"kernels.md": index_text(), **built_in, **of_composites}


def main(folder: str) -> None:
    """Write the pages below ``folder``; pages of families that are gone are deleted."""
    root = Path(folder)
    written = pages()
    (root / "kernels").mkdir(parents=True, exist_ok=True)
    for stale in (root / "kernels").glob("*.md"):
        if f"kernels/{stale.name}" not in written:
            stale.unlink()
    for name, text in written.items():
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
