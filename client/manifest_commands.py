"""``kaas manifest merge``, ``diff``, ``stats``, ``lint``, ``from-model``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from kaas.client import exit_status
from kaas.client.kernel_listing import spec_text
from kaas.client.terminal import guarded, print_fields, print_json, print_table
from kaas.proto.errors import InvalidRequest

if TYPE_CHECKING:
    from kaas.client.manifest_document import ManifestDocument, ManifestTarget
    from kaas.kernel_library.spec import Spec

File = Annotated[
    Path, typer.Argument(help="A manifest, YAML or JSON; - is standard input.", show_default=False)
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write to this file, JSON if its name ends so.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]


def add_manifest_commands(app: typer.Typer) -> None:
    """Hang the commands into the command line."""
    group = typer.Typer(
        name="manifest",
        help="Which kernels a cluster is to hold: made, joined, checked.",
        no_args_is_help=True,
    )
    for command in (merge, diff, stats, lint, from_model):
        group.command()(guarded(command))
    app.add_typer(group)


def merge(
    files: Annotated[list[Path], typer.Argument(help="Manifests, YAML or JSON.", show_default=False)],
    output: Output = None,
    weights: Annotated[str, typer.Option(help="Weights of one spec in several: sum or max.")] = "sum",
    json: Json = False,
) -> None:
    """Print one manifest that wants what any of them wants."""
    from kaas.client.manifest_document import read_document
    from kaas.client.manifest_sets import WEIGHTS
    from kaas.client.manifest_sets import merge as merged

    if weights not in WEIGHTS:
        raise InvalidRequest(f"weights is {weights!r}", field="weights", legal=list(WEIGHTS))
    write_manifest(merged([read_document(path) for path in files], weights), output, json)


def diff(old: File, new: File, json: Json = False) -> int:
    """Show what the second manifest has that the first has not. Exit status 1: they differ."""
    from kaas.client.manifest_document import read_document
    from kaas.client.manifest_sets import difference

    found = difference(read_document(old), read_document(new))
    if json:
        print_json(
            {
                "added": [_wanted(*one) for one in found.added],
                "removed": [_wanted(*one) for one in found.removed],
                "reweighted": [
                    _wanted(spec, target) | {"old_weight": before, "new_weight": after}
                    for spec, target, before, after in found.reweighted
                ],
            }
        )
    else:
        for spec, target in found.removed:
            print(f"- {_line(spec, target)}")
        for spec, target in found.added:
            print(f"+ {_line(spec, target)}")
        for spec, target, before, after in found.reweighted:
            print(f"~ {_line(spec, target)}: weight {before:g} -> {after:g}")
    return 0 if found.is_empty else exit_status.FAILED


def stats(file: File, json: Json = False) -> None:
    """Count a manifest's kernels and weight, by family and by target."""
    from kaas.client.manifest_document import read_document
    from kaas.client.manifest_statistics import statistics

    facts = statistics(read_document(file))
    if json:
        print_json(facts)
        return
    families, targets = facts.pop("families"), facts.pop("targets")
    print_fields((name, f"{value:g}" if name == "weight" else str(value)) for name, value in facts.items())
    print()
    rows = [[name, str(of["kernels"]), f"{of['weight']:g}"] for name, of in families.items()]
    print_table(["family", "kernels", "weight"], rows)
    print()
    print_table(["target", "kernels"], [[name, str(count)] for name, count in targets.items()])


def lint(
    file: File,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail, too.")] = False,
    json: Json = False,
) -> int:
    """Say everything that is wrong or odd, with its line. Exit status 1: something is wrong."""
    from kaas.client.manifest_lint import lint as findings_in
    from kaas.client.yaml_text import read_text

    findings = findings_in(read_text(file, "manifest"), str(file))
    if json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            print(f"{file}:{finding.line}: {finding.severity}: {finding.message}")
    failed = any(strict or finding.severity == "error" for finding in findings)
    return exit_status.FAILED if failed else 0


def from_model(
    config: Annotated[
        Path,
        typer.Argument(help="A model's config.json, or the folder that has it; - is standard input."),
    ],
    tp: Annotated[int, typer.Option(help="Ranks that share attention and dense layers.")] = 1,
    ep: Annotated[
        int, typer.Option(help="Ranks that share the experts; 1: each expert is shared by tp.")
    ] = 1,
    pp: Annotated[int, typer.Option(help="Stages that share the layers.")] = 1,
    stage: Annotated[
        int | None, typer.Option(help="Only this stage, from 0.", show_default="all stages")
    ] = None,
    tokens: Annotated[
        str, typer.Option(help="Tokens of a prefill or training step: N,N,...", show_default="any number")
    ] = "",
    batch_sizes: Annotated[
        str, typer.Option(help="Requests of a decoding step: N,N,...", show_default="any number")
    ] = "",
    dtype: Annotated[
        str | None,
        typer.Option(help="Of products: bf16, fp16, fp8.", show_default="as the configuration says"),
    ] = None,
    expert_dtype: Annotated[
        str | None,
        typer.Option(
            help="Of experts' weights: fp8 or fp4 with fp8.", show_default="as the configuration says"
        ),
    ] = None,
    sku: Annotated[
        list[str] | None,
        typer.Option("--sku", help="SoC name to compile for; repeatable.", show_default="the node's own"),
    ] = None,
    cann: Annotated[
        str, typer.Option(help="CANN version that the manifest is for.", show_default="the node's own")
    ] = "",
    max_tokens_per_rank: Annotated[
        int | None,
        typer.Option(help="Tokens that a rank sends to another at most, with --ep.", show_default="--tokens"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Longest sequence.", show_default="max_position_embeddings")
    ] = None,
    page: Annotated[int, typer.Option(help="Keys of a cache page, 64 or 128.")] = 64,
    separate_qkv: Annotated[
        bool, typer.Option("--separate-qkv", help="Queries, keys and values as three products.")
    ] = False,
    mtp: Annotated[bool, typer.Option("--mtp", help="With the modules that predict further tokens.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward.")] = False,
    output: Output = None,
    json: Json = False,
) -> None:
    """Print the kernels that a model needs, for whom and how often, and what no family serves."""
    from kaas.client.manifest_document import ManifestTarget, require_cann
    from kaas.client.model_kernels.architectures import architecture_of
    from kaas.client.model_kernels.deployment import Deployment, Dtype, ExpertDtype
    from kaas.client.model_kernels.derivation import derive_manifest, stored_dtypes
    from kaas.client.model_kernels.model_config import read_model_config
    from kaas.kernel_library.targets import target_named

    require_cann(cann)
    model = read_model_config(config)
    architecture_of(model)
    stored = stored_dtypes(model) if dtype is None else (dtype, expert_dtype or dtype)
    deployment = Deployment(
        tp=tp,
        ep=ep,
        pp=pp,
        stage=stage,
        dtype=_one_of("dtype", stored[0], get_args(Dtype)),
        expert_dtype=_one_of("expert_dtype", expert_dtype or stored[1], get_args(ExpertDtype)),
        tokens=_numbers("tokens", tokens),
        batch_sizes=_numbers("batch_sizes", batch_sizes),
        max_tokens_per_rank=max_tokens_per_rank,
        context=context,
        page=page,
        fused_qkv=not separate_qkv,
        mtp=mtp,
        train=train,
    )
    names = [target_named(name).soc_name for name in sku or ()]
    targets = tuple(ManifestTarget(name, cann) for name in dict.fromkeys(names or ([""] if cann else [])))
    write_manifest(derive_manifest(model, deployment, targets), output, json)


def _one_of(field: str, value: str, legal: Sequence[str]) -> Any:
    if value not in legal:
        raise InvalidRequest(f"{field} is {value!r}", field=field, legal=list(legal))
    return value


def _numbers(field: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise InvalidRequest(f"{field} is {text!r}", field=field, legal="numbers with commas between them")
    return tuple(dict.fromkeys(int(word) for word in words))


def write_manifest(document: ManifestDocument, output: Path | None, as_json: bool) -> None:
    """A manifest to a file or standard output, as YAML or JSON."""
    from kaas.client.manifest_writing import json_text, yaml_text

    is_json = as_json or (output is not None and output.suffix == ".json")
    text = json_text(document) if is_json else yaml_text(document)
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"{output} cannot be written: {error.strerror}",
            field="output",
            legal="a file that can be written",
        ) from None


def _wanted(spec: Spec, target: ManifestTarget) -> dict[str, Any]:
    from kaas.client.manifest_writing import spec_record

    return {"spec": spec_record(spec), **target._asdict()}


def _line(spec: Spec, target: ManifestTarget) -> str:
    from kaas.client.manifest_statistics import target_text
    from kaas.client.manifest_writing import spec_record

    told = spec_record(spec)
    name = told.pop("family")
    return f"{name} {spec_text(told)} [{target_text(*target)}]"
