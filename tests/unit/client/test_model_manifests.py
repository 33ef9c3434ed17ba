"""Manifests from models: legal specs, counted per layer, shapes checked by hand, and what is refused."""

from __future__ import annotations

import json

import pytest
from support.model_configs import (
    DEPLOYMENTS,
    MODELS,
    config_path,
    derived,
    model_config,
    serving,
    training,
)
from typer.testing import CliRunner, Result

from kaas.client import cli
from kaas.client.manifest_document import ManifestDocument, parse_document
from kaas.client.manifest_writing import json_text, yaml_text
from kaas.client.model_kernels.architectures import ARCHITECTURES, architecture_of
from kaas.client.model_kernels.deployment import Deployment
from kaas.client.model_kernels.derivation import derive_manifest, stored_dtypes
from kaas.client.model_kernels.wish_list import layers_named
from kaas.kernel_library.composites.sparse_attention import SparseAttentionSpec
from kaas.kernel_library.families.batched_gemm import BatchedGemmSpec
from kaas.kernel_library.families.block_scaled_gemm import BlockScaledGemmSpec
from kaas.kernel_library.families.gemm import GemmSpec
from kaas.kernel_library.families.grouped_gemm import GroupedGemmSpec
from kaas.kernel_library.families.mla_decode import MlaDecodeSpec
from kaas.kernel_library.families.mla_prefill import MlaPrefillSpec
from kaas.kernel_library.registry import parse_spec
from kaas.kernel_library.spec import KernelSpec
from kaas.kernel_library.targets import TARGETS
from kaas.proto.errors import InvalidConfig, InvalidRequest

ONE_OF_EACH_SIZE = tuple(
    {(target.cube_cores, target.ub_bytes): target for target in TARGETS.values()}.values()
)


def kaas(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, words, input=stdin)


def spec_for(document: ManifestDocument, wanted_by: str, family: type[KernelSpec]) -> KernelSpec:
    """The one kernel of a family that a layer wants under this name."""
    found = [
        entry.spec
        for entry in document.entries
        if isinstance(entry.spec, family)
        and wanted_by in [name.partition(": ")[2] for name in entry.wanted_by]
    ]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("kind", DEPLOYMENTS)
@pytest.mark.parametrize("model", MODELS)
def test_every_derived_spec_is_legal_fits_and_reads_back(model: str, kind: str) -> None:
    document = derived(model, DEPLOYMENTS[kind](model))
    assert len({entry.spec.canonical() for entry in document.entries}) == len(document.entries) > 10
    for entry in document.entries:
        assert isinstance(entry.spec, KernelSpec)
        assert parse_spec(entry.spec.canonical()) == entry.spec
        for target in ONE_OF_EACH_SIZE:
            entry.spec.check_target(target)
        assert entry.wanted_by
        assert entry.weight >= 1
    for text in (yaml_text(document), json_text(document)):
        read = parse_document(text)
        assert read._replace(entries=()) == document._replace(entries=())
        assert [entry._replace(line=0) for entry in read.entries] == list(document.entries)


# Launches in one step of prefill plus one of decoding, by hand. L layers: 2L + 1 norms of the stream, and per
# layer: Llama four products (qkv, o, gate_up, down) and one for the vocabulary; Qwen3 has two norms of heads
# more in each layer; a mixture has the router for the two dense products, and two grouped ones.
COUNTS = {
    "llama_3_1_8b": {
        "rmsnorm": 2 * 65,
        "gemm": 2 * (4 * 32 + 1),
        "rope": 2 * 64,
        "swiglu": 64,
        "mla_prefill": 32,
    },
    "llama_3_1_70b": {"rmsnorm": 2 * 161, "gemm": 2 * (4 * 80 + 1), "swiglu": 160, "mla_prefill": 80},
    "qwen3_32b": {"rmsnorm": 2 * (129 + 128), "gemm": 2 * (4 * 64 + 1), "mla_prefill": 64},
    "qwen3_30b_a3b": {
        "rmsnorm": 2 * (97 + 96),
        "gemm": 2 * (3 * 48 + 1),
        "grouped_gemm": 2 * 2 * 48,
        "moe_gate": 2 * 48,
        "ep_layout": 2 * 48,
        "ep_combine": 2 * 48,
        "swiglu": 2 * 48,
        "mla_prefill": 48,
    },
    "qwen3_235b_a22b": {"gemm": 2 * (3 * 94 + 1), "grouped_gemm": 4 * 94, "ep_expand": 2 * 94},
    # 3 dense and 58 sparse layers. Scaled products of a layer: q_a, q_b, kv_a, o, and kv_b in prefill;
    # gate_up and down of the dense MLP or of the shared expert. Router and vocabulary stay bf16.
    "deepseek_v3": {
        "block_scaled_gemm": 2 * 61 * (4 + 2) + 61,
        "gemm": 2 * (58 + 1),
        "batched_gemm": 2 * 61,
        "grouped_gemm": 4 * 58,
        "moe_gate": 2 * 58,
        "swiglu": 2 * (61 + 58),
        "mla_prefill": 61,
        "mla_decode": 61,
        "rmsnorm": 2 * (2 * 61 + 1 + 2 * 61),
    },
    # Besides: wq_b and wk of the indexer, its head weights in bf16; no kv_b, attention in the latent space.
    "deepseek_v3_2_exp": {
        "block_scaled_gemm": 2 * 61 * (4 + 2 + 2),
        "gemm": 2 * (58 + 61 + 1),
        "batched_gemm": 2 * 2 * 61,
        "mqa_logits": 61,
        "paged_mqa_logits": 61,
        "topk_select": 2 * 61,
        "mla_sparse_prefill": 2 * 61,
    },
    # 2 layers with a window only, 21 that select compressed keys, 20 that see them all; two blocks a layer.
    "deepseek_v4_flash": {
        "hc_prenorm_gemm": 2 * 2 * 43,
        "mhc_pre_fuse": 2 * 2 * 43,
        "mhc_post": 2 * 2 * 43,
        "mla_sparse_prefill": 43,
        "mla_sparse_decode": 43,
        "mqa_logits": 21,
        "block_scaled_gemm": 2 * (43 * (4 + 2) + 21),
        "batched_gemm": 2 * 43,
        "moe_gate": 2 * 43,
        # router, compressors of layers and of indexers, the indexer's head weights, vocabulary
        "gemm": 2 * (43 + 41 + 21 + 21 + 1),
    },
}


@pytest.mark.parametrize("model", MODELS)
def test_kernels_are_counted_per_layer(model: str) -> None:
    document = derived(model, serving(model))
    found: dict[str, float] = {}
    for entry in document.entries:
        found[entry.spec.family] = found.get(entry.spec.family, 0) + entry.weight
    assert {family: found.get(family) for family in COUNTS[model]} == COUNTS[model]


def test_shapes_by_hand_llama_70b_on_eight_ranks() -> None:
    document = derived("llama_3_1_70b", Deployment(tp=8))
    # 64 / 8 query heads and 8 / 8 heads of keys and of values, each of 8192 / 64 = 128
    assert spec_for(document, "attention.qkv_proj", GemmSpec) == GemmSpec(n=1280, k=8192)
    assert spec_for(document, "attention.o_proj", GemmSpec) == GemmSpec(n=8192, k=1024)
    # gate and up, 28672 / 8 each
    assert spec_for(document, "mlp.gate_up_proj", GemmSpec) == GemmSpec(n=7168, k=8192)
    assert spec_for(document, "mlp.down_proj", GemmSpec) == GemmSpec(n=8192, k=3584)
    assert spec_for(document, "lm_head", GemmSpec) == GemmSpec(n=16032, k=8192)
    assert spec_for(document, "attention of prefill", MlaPrefillSpec) == MlaPrefillSpec(
        heads=8, group=8, d_qk=128, causal=True
    )


def test_shapes_by_hand_deepseek_v3_on_eight_ranks_and_32_for_experts() -> None:
    deployment = Deployment(tp=8, ep=32, dtype="fp8", expert_dtype="fp8", max_tokens_per_rank=1024)
    document = derived("deepseek_v3", deployment)
    # 16 heads of 128 + 64
    assert spec_for(document, "attention.q_b_proj", BlockScaledGemmSpec) == BlockScaledGemmSpec(
        n=3072, k=1536
    )
    assert spec_for(document, "attention.kv_a_proj_with_mqa", BlockScaledGemmSpec) == BlockScaledGemmSpec(
        n=576, k=7168
    )
    # 16 heads of 128 + 128
    assert spec_for(document, "attention.kv_b_proj", BlockScaledGemmSpec) == BlockScaledGemmSpec(
        n=4096, k=512
    )
    # 256 / 32 experts, gate and up of 2048
    assert spec_for(document, "experts.gate_up_proj", GroupedGemmSpec) == GroupedGemmSpec(
        groups=8, n=4096, k=7168, dtype_a="e4m3", dtype_b="e4m3"
    )
    assert spec_for(document, "attention.q_absorbed", BatchedGemmSpec) == BatchedGemmSpec(
        expression="bhd,hdr->bhr", h=16, d=128, r=512
    )
    assert spec_for(document, "attention of decoding", MlaDecodeSpec) == MlaDecodeSpec(heads=16)


def test_shapes_by_hand_of_gradients() -> None:
    document = derived("qwen3_32b", Deployment(train=True, tp=4, tokens=(2048,)))
    # y[2048, 5120] = x[2048, 6400] @ w[5120, 6400]^T
    assert spec_for(document, "mlp.down_proj, gradient of the input", GemmSpec) == GemmSpec(
        m=2048, n=6400, k=5120, layout="nn"
    )
    assert spec_for(document, "mlp.down_proj, gradient of the weight", GemmSpec) == GemmSpec(
        m=5120, n=6400, k=2048, layout="tn", dtype_d="fp32", accumulate=True
    )


def test_sizes_of_steps_become_constants() -> None:
    document = derived("llama_3_1_8b", Deployment(tokens=(4096,), batch_sizes=(1, 32)))
    rows = [
        entry.spec.m
        for entry in document.entries
        if isinstance(entry.spec, GemmSpec) and entry.spec.k == 14336
    ]
    assert rows == [4096, 1, 32]
    with pytest.raises(InvalidRequest, match="batch sizes"):
        Deployment(train=True, batch_sizes=(8,))


def test_sparse_attention_is_the_composites() -> None:
    document = derived("deepseek_v3_2_exp", serving("deepseek_v3_2_exp"))
    specs = {entry.spec for entry in document.entries}
    composite = SparseAttentionSpec(index_heads=64, index_head_dim=128, topk=2048, heads=128, d_qk=576)
    assert {stage.spec for stage in composite.stages()} <= specs


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        ("llama_3_1_8b", ["embedding: lookup", "layers 0-31: attention of decoding", "output: logits"]),
        ("deepseek_v3", ["embedding: lookup", "layers 3-60: dispatch and combine", "output: logits"]),
        (
            "deepseek_v4_flash",
            [
                "embedding: lookup",
                "layers 0-2: dispatch and combine",
                "layers 2-42 step 2: compressor pooling",
                "layers 2-42 step 2: indexer",
                "layers 2-42 step 2: indexer.compressor pooling",
                "layers 3-41 step 2: compressor pooling",
                "layers 3-42: dispatch and combine",
                "output: head mixes",
                "output: logits",
            ],
        ),
    ],
)
def test_what_no_family_serves_is_said(model: str, lacking: list[str]) -> None:
    document = derived(model, serving(model))
    assert sorted({one.wanted_by for one in document.unserved}) == lacking
    assert all(one.needs and one.reason for one in document.unserved)


def test_training_says_that_attention_has_no_backward_pass() -> None:
    for model in MODELS:
        document = derived(model, training(model))
        assert any("attention, gradients" in one.wanted_by for one in document.unserved), model


def test_a_shard_that_a_family_refuses_is_not_served_and_says_why() -> None:
    document = derived("deepseek_v4_flash", Deployment(tp=2))
    (reason,) = {one.reason for one in document.unserved if one.needs == "mla_sparse_decode"}
    assert "heads is 32" in reason
    assert not any(entry.spec.family.startswith("mla_sparse") for entry in document.entries)


def test_a_stage_has_its_layers_only() -> None:
    whole = derived("llama_3_1_8b", Deployment(pp=4))
    parts = [derived("llama_3_1_8b", Deployment(pp=4, stage=stage)) for stage in range(4)]
    assert sum(entry.weight for part in parts for entry in part.entries) == sum(
        entry.weight for entry in whole.entries
    )
    assert any(one.wanted_by.startswith("embedding") for one in parts[0].unserved)
    assert not any("lm_head" in name for entry in parts[0].entries for name in entry.wanted_by)
    assert any("lm_head" in name for entry in parts[3].entries for name in entry.wanted_by)


def test_further_token_prediction_is_asked_for() -> None:
    document = derived("deepseek_v3", Deployment(mtp=True))
    # eh_proj: two hidden states side by side
    assert spec_for(document, "eh_proj", GemmSpec) == GemmSpec(n=7168, k=14336)
    decode = spec_for(document, "attention of decoding", MlaDecodeSpec)
    assert decode == MlaDecodeSpec(s_q=2, causal=True)
    with pytest.raises(InvalidConfig, match="num_nextn_predict_layers is missing"):
        derived("llama_3_1_8b", Deployment(mtp=True))


@pytest.mark.parametrize(
    ("deployment", "said"),
    [
        ({"tp": 3}, "num_attention_heads is 32, which tp 3 does not divide; legal: 1, 2, 4, 8, 16, 32"),
        ({"ep": 3, "max_tokens_per_rank": 64}, "number of experts is 128, which ep 3 does not divide"),
        ({"tp": 32, "ep": 1}, "vocab_size"),
        ({"pp": 5, "stage": 0}, "num_hidden_layers is 48, which pp 5 does not divide"),
        ({"pp": 49}, "num_hidden_layers is 48, fewer than pp 49"),
        ({"pp": 2, "stage": 2}, "stage is 2; legal: 0 to 1"),
        ({"tp": 0}, "tp is 0"),
        ({"ep": 16}, "ep is 16, and how many tokens"),
        (
            {"ep": 16, "tokens": (64,), "max_tokens_per_rank": 8},
            "max_tokens_per_rank is 8, but a step has 64",
        ),
        ({"expert_dtype": "fp4"}, "expert dtype is fp4, which does not go with dtype bf16"),
        ({"page": 48}, "page is 48"),
    ],
)
def test_a_deployment_that_does_not_divide_is_refused_with_the_numbers(
    deployment: dict[str, int], said: str
) -> None:
    config = model_config("qwen3_30b_a3b", vocab_size=151936 if deployment.get("tp") != 32 else 151937)
    with pytest.raises(InvalidRequest) as caught:
        derive_manifest(config, Deployment(**deployment))  # type: ignore[arg-type]
    assert said in caught.value.message
    assert caught.value.details["field"]


def test_heads_of_keys_are_copied_to_further_ranks() -> None:
    document = derived("qwen3_30b_a3b", Deployment(tp=8))
    # 32 / 8 query heads, and one of 4 heads of keys on two ranks each
    assert spec_for(document, "attention.qkv_proj", GemmSpec) == GemmSpec(n=(4 + 2) * 128, k=2048)
    with pytest.raises(InvalidRequest, match="num_key_value_heads is 4, which tp 6"):
        derive_manifest(model_config("qwen3_30b_a3b", num_attention_heads=36), Deployment(tp=6))


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("qwen3_30b_a3b", {"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
        ("qwen3_30b_a3b", {"norm_topk_prob": False}, "norm_topk_prob is false"),
        ("qwen3_30b_a3b", {"hidden_size": "2048"}, 'hidden_size is "2048"'),
        ("qwen3_30b_a3b", {"hidden_act": "gelu"}, 'hidden_act is "gelu"; legal: silu'),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank is null"),
        ("deepseek_v3", {"scoring_func": ...}, "scoring_func is missing"),
        ("deepseek_v4_flash", {"compress_ratios": [4]}, "compress_ratios has 1 numbers for 43 layers"),
        ("deepseek_v4_flash", {"architectures": []}, "architectures is []"),
        (
            "llama_3_1_8b",
            {"num_attention_heads": 24},
            "hidden_size 4096 is no multiple of num_attention_heads 24",
        ),
        ("llama_3_1_8b", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("llama_3_1_8b", {"rms_norm_eps": True}, "rms_norm_eps is true"),
    ],
)
def test_a_configuration_names_what_is_missing_or_odd(
    model: str, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        derive_manifest(model_config(model, **changes), Deployment())
    assert said in caught.value.message
    assert caught.value.details["field"] in caught.value.message


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfig) as caught:
        architecture_of(model_config("llama_3_1_8b", architectures=["Gemma3ForCausalLM"]))
    assert "Gemma3ForCausalLM" in caught.value.message
    assert caught.value.details["legal"] == sorted(ARCHITECTURES)


def test_number_formats_are_those_that_weights_are_stored_in() -> None:
    assert stored_dtypes(model_config("llama_3_1_8b")) == ("bf16", "bf16")
    assert stored_dtypes(model_config("deepseek_v3")) == ("fp8", "fp8")
    assert stored_dtypes(model_config("deepseek_v4_flash")) == ("fp8", "fp4")
    with pytest.raises(InvalidConfig, match="quant_method"):
        stored_dtypes(model_config("llama_3_1_8b", quantization_config={"quant_method": "awq"}))


def test_layers_are_named_in_runs() -> None:
    assert layers_named([0]).name == "layer 0"
    assert layers_named([0, 1, 2, 5]).name == "layers 0-2,5"
    assert layers_named([2, 4, 6, 7]).name == "layers 2-6 step 2,7"
    assert layers_named([3, 9]).name == "layers 3,9"
    assert layers_named([3, 9]).total == 2


def test_the_command_prints_a_manifest_that_lints() -> None:
    words = ["manifest", "from-model", str(config_path("deepseek_v4_flash")), "--sku", "ascend950dt_9581"]
    made = kaas(*words, "--ep", "16", "--max-tokens-per-rank", "4096")
    assert made.exit_code == 0, made.output
    assert "# No family serves these:" in made.stdout
    linted = kaas("manifest", "lint", "--strict", "-", stdin=made.stdout)
    assert (linted.exit_code, linted.stdout) == (0, "")
    facts = json.loads(kaas(*words, "--json").stdout)
    assert facts["unserved"][0] == {
        "wanted_by": "embedding: lookup",
        "needs": "rows of a table by token",
        "reason": "no family has it",
    }
    assert facts["targets"] == [{"soc_name": "Ascend950DT_9581"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere/config.json"], "cannot be read"),
        ([str(config_path("llama_3_1_8b")), "--tokens", "1,x"], "tokens is '1,x'"),
        ([str(config_path("llama_3_1_8b")), "--dtype", "fp64"], "dtype is 'fp64'"),
        ([str(config_path("llama_3_1_8b")), "--sku", "Ascend910B1"], "Ascend910B1"),
        ([str(config_path("llama_3_1_8b")), "--cann", "new"], "cann is 'new'"),
        ([str(config_path("llama_3_1_8b")), "--tp", "5"], "which tp 5 does not divide"),
    ],
)
def test_the_command_refuses_plainly(words: list[str], said: str) -> None:
    result = kaas("manifest", "from-model", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
