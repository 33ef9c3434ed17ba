"""Kernel pages: complete, up to date, and every upstream function accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.kernel_library.kernel_pages import pages
from kaas.kernel_library.registry import families
from kaas.kernel_library.upstream import COMPONENTS, NOT_SERVED

DOCS = Path(__file__).parents[3] / "docs"
UPSTREAM = {function for functions in COMPONENTS.values() for function in functions}
PAGES = {name: family.page for name, family in families().items()}


def test_the_checked_in_pages_are_what_the_registry_says() -> None:
    written = {f"kernels/{path.name}": path.read_text() for path in (DOCS / "kernels").glob("*.md")}
    written["kernels.md"] = (DOCS / "kernels.md").read_text()
    assert written == pages(), "run scripts/kernel-pages"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_explains_every_argument_of_its_examples(name: str) -> None:
    page = PAGES[name]
    assert page is not None
    assert page.computes
    assert page.tolerance
    assert page.facts
    assert page.examples
    for spec in page.examples:
        assert spec.family == name
        for parameter in families()[name].parameters(spec):
            assert page.arguments[parameter.name]


def test_every_upstream_function_is_served_or_has_a_reason() -> None:
    served = {function for page in PAGES.values() if page for function in page.serves}
    assert served <= UPSTREAM, f"not upstream functions: {sorted(served - UPSTREAM)}"
    assert NOT_SERVED.keys() <= UPSTREAM
    assert UPSTREAM - served - NOT_SERVED.keys() == set()


def test_every_family_has_a_reference_of_its_name() -> None:
    import kaas.kernel_library.references as references

    folder = Path(references.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} >= families().keys()
