"""The shapes of REST bodies, typed and with examples; they are what the OpenAPI document shows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

KEY = "3f1c0d5e8a9b47263f1c0d5e8a9b47263f1c0d5e8a9b47263f1c0d5e8a9b4726"
SPEC: dict[str, Any] = {
    "family": "gemm",
    "n": 4096,
    "k": 7168,
    "dtype_a": "bf16",
    "dtype_b": "bf16",
    "dtype_d": "bf16",
}
_SUMMARY: dict[str, Any] = {
    "key": KEY,
    "family": "gemm",
    "spec": SPEC,
    "soc_name": "Ascend950PR_9579",
    "cann_version": "9.1.0",
    "toolchain_kind": "cann",
    "dtype": "bf16",
    "state": "ready",
    "size_bytes": 48213,
    "created_unix": 1790000000.0,
    "compile_seconds": 3.2,
    "hits": 17,
    "current": True,
}
_FAILURE: dict[str, Any] = {
    "key": KEY,
    "family": "gemm",
    "spec": SPEC,
    "soc_name": "Ascend950PR_9579",
    "cann_version": "9.1.0",
    "toolchain_kind": "cann",
    "kind": "deterministic",
    "attempts": 1,
    "failed_unix": 1790000000.0,
    "expires_unix": 1790086400.0,
    "answered": 99,
    "error": {"code": "compile_failed", "message": "bisheng failed with status 1", "details": {}},
}
_JOB: dict[str, Any] = {
    "id": "9f86d081884c7d65",
    "label": "llama-8b rollout",
    "state": "running",
    "total": 120,
    "done": 30,
    "ready": 29,
    "failed": 1,
    "created_unix": 1790000000.0,
    "errors": [
        {"index": 4, "error": {"code": "invalid_spec", "message": "n is 0", "details": {"field": "n"}}}
    ],
}


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]})


def _strict_example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]}, extra="forbid")


class Problem(BaseModel):
    """RFC 9457 problem document; ``details`` holds what a program can act on."""

    model_config = _example(
        {
            "type": "urn:kaas:error:invalid_spec",
            "title": "Invalid spec",
            "status": 400,
            "detail": "n is 0; legal: an integer from 1 to 2147483647",
            "code": "invalid_spec",
            "retryable": False,
            "details": {"field": "n", "legal": "an integer from 1 to 2147483647"},
        }
    )
    type: str
    title: str
    status: int
    detail: str
    code: str | None = None
    retryable: bool | None = None
    details: dict[str, Any] | None = None
    hint: str | None = None


class KernelSummaryBody(BaseModel):
    """One kernel in a list. ``current``: its key is what this node would compute for its spec today."""

    model_config = _example(_SUMMARY)
    key: str
    family: str
    spec: dict[str, Any]
    soc_name: str
    cann_version: str
    toolchain_kind: str
    dtype: str
    state: Literal["ready", "compiling", "queued", "failed"]
    size_bytes: int
    created_unix: float
    compile_seconds: float
    hits: int
    current: bool
    place: int = Field(0, description="in the queue, from 1; 0: it is not queued")
    estimate_s: float = Field(0.0, description="seconds until a coming kernel is ready, roughly")
    error: str = Field("", description="what went wrong, when its compile failed")
    leases: int = 0
    pinned: bool = False


class KernelPageBody(BaseModel):
    """A page of kernels; ``next_page_token`` is empty on the last one."""

    model_config = _example({"kernels": [_SUMMARY], "next_page_token": "", "total": 1})
    kernels: list[KernelSummaryBody]
    next_page_token: str
    total: int


class KernelBody(BaseModel):
    """One cached kernel: what its key is made of, how it is launched, what the builder chose."""

    model_config = _example(
        {
            "summary": _SUMMARY,
            "passport": {"schema_version": 1, "spec": SPEC, "target": {"soc_name": "Ascend950PR_9579"}},
            "launch": {"entry": "kernel", "block_count": 28, "dynamic_ub_bytes": 0, "parameters": []},
            "choices": {"block_m": 128, "block_n": 256, "block_k": 64},
            "artifact_path": "/var/cache/kaas/artifacts/3f/3f1c0d5e.kaas",
        }
    )
    summary: KernelSummaryBody
    passport: dict[str, Any]
    launch: dict[str, Any]
    choices: dict[str, Any]
    artifact_path: str


class FailureBody(BaseModel):
    """A failed compile that is remembered: requests for it are answered with `error` until it expires."""

    model_config = _example(_FAILURE)
    key: str
    family: str
    spec: dict[str, Any]
    soc_name: str
    cann_version: str
    toolchain_kind: str
    kind: Literal["deterministic", "transient"]
    attempts: int
    failed_unix: float
    expires_unix: float
    answered: int = Field(description="requests answered with it since this daemon started")
    error: dict[str, Any]


class FailurePageBody(BaseModel):
    """A page of remembered failures, newest first; ``next_page_token`` is empty on the last one."""

    model_config = _example({"failures": [_FAILURE], "next_page_token": "", "total": 1})
    failures: list[FailureBody]
    next_page_token: str
    total: int


class ClearedBody(BaseModel):
    """Keys whose failures are forgotten; the next request for one compiles again."""

    model_config = _example({"keys": [KEY]})
    keys: list[str]


class CompileBody(BaseModel):
    """Ask for one kernel; the call returns when it is ready or ``timeout_s`` has passed."""

    model_config = _strict_example({"spec": SPEC, "soc_name": "Ascend950PR_9579", "timeout_s": 60})
    spec: dict[str, Any]
    soc_name: str = Field("", max_length=64, description="empty: this node's own target")
    timeout_s: float = Field(60.0, gt=0, le=3600, allow_inf_nan=False)
    priority: Literal["rank", "user", "prewarm"] = Field("user", description="who waits for it")


class DeliveryBody(BaseModel):
    """A kernel that is ready. ``artifact_path`` is null when the store could not take it."""

    model_config = _example(
        {
            "key": KEY,
            "outcome": "compiled",
            "artifact_path": "/var/cache/kaas/artifacts/3f/3f1c0d5e.kaas",
            "compile_seconds": 3.2,
            "waited_seconds": 3.3,
        }
    )
    key: str
    outcome: Literal["hit", "compiled", "joined", "fetched"]
    artifact_path: str | None
    compile_seconds: float
    waited_seconds: float


class ExplainBody(BaseModel):
    """Ask why a spec hits or misses."""

    model_config = _strict_example({"spec": SPEC, "soc_name": ""})
    spec: dict[str, Any]
    soc_name: str = Field("", max_length=64, description="empty: this node's own target")


class DifferenceBody(BaseModel):
    """One passport field: what this node wants, and what the cached kernel has."""

    model_config = _example({"path": "toolchain.cann_version", "wanted": "9.1.0", "cached": "9.0.0"})
    path: str
    wanted: Any
    cached: Any


class NearBody(BaseModel):
    """A cached kernel that is close, and every field in which it differs."""

    model_config = _example(
        {
            "key": KEY,
            "differences": [{"path": "toolchain.cann_version", "wanted": "9.1.0", "cached": "9.0.0"}],
        }
    )
    key: str
    differences: list[DifferenceBody]


class ExplanationBody(BaseModel):
    """Why a spec hits or misses, in one sentence and field by field."""

    model_config = _example(
        {
            "key": KEY,
            "hit": False,
            "reason": "The nearest cached kernel has toolchain.cann_version 9.0.0; this node needs 9.1.0.",
            "nearest": [
                {
                    "key": KEY,
                    "differences": [{"path": "toolchain.cann_version", "wanted": "9.1.0", "cached": "9.0.0"}],
                }
            ],
            "passport": {"schema_version": 1, "spec": SPEC},
        }
    )
    key: str
    hit: bool
    reason: str
    nearest: list[NearBody]
    passport: dict[str, Any]
    failure: FailureBody | None = None


class PrewarmEntryBody(BaseModel):
    """One kernel to have ready."""

    model_config = _strict_example({"spec": SPEC})
    spec: dict[str, Any]
    soc_name: str = Field("", max_length=64)


class PrewarmBody(BaseModel):
    """Kernels to compile behind foreground work. A bad entry fails alone."""

    model_config = _strict_example({"label": "llama-8b rollout", "entries": [{"spec": SPEC}]})
    entries: list[PrewarmEntryBody] = Field(min_length=1, max_length=20_000)
    label: str = Field("", max_length=200)


class JobErrorBody(BaseModel):
    """An entry that failed, and its error record."""

    model_config = _example(_JOB["errors"][0])
    index: int
    error: dict[str, Any]


class JobBody(BaseModel):
    """A pre-warm job. ``done`` counts ready and failed entries; at most 100 errors are shown."""

    model_config = _example(_JOB)
    id: str
    label: str
    state: Literal["running", "finished", "cancelled"]
    total: int
    done: int
    ready: int
    failed: int
    created_unix: float
    errors: list[JobErrorBody]


class JobPageBody(BaseModel):
    """A page of jobs, newest first; ``next_page_token`` is empty on the last one."""

    model_config = _example({"jobs": [_JOB], "next_page_token": "", "total": 1})
    jobs: list[JobBody]
    next_page_token: str
    total: int


class FamilyBody(BaseModel):
    """One kernel family, or composite of several kernels, and the JSON Schema (2020-12) of its specs."""

    model_config = _example(
        {
            "name": "rmsnorm",
            "kind": "kernel",
            "summary": "root mean square normalisation",
            "spec_schema": {"type": "object"},
        }
    )
    name: str
    kind: Literal["kernel", "composite"] = Field(
        "kernel",
        description="a composite stands for several kernels, and only pre-warm jobs and pins take it",
    )
    summary: str
    spec_schema: dict[str, Any]


class FamilyDetailBody(FamilyBody):
    """One kernel family in full: its page (Markdown), typical specs, what it stands for upstream."""

    model_config = _example(
        {
            "name": "gemm",
            "kind": "kernel",
            "summary": "dense product",
            "spec_schema": {"type": "object"},
            "page": "# gemm",
            "examples": [SPEC],
            "serves": ["deep_gemm.bf16_gemm_nt"],
        }
    )
    page: str
    examples: list[dict[str, Any]]
    serves: list[str]


class FamilyPageBody(BaseModel):
    """A page of families and composites by name; ``next_page_token`` is empty on the last one."""

    model_config = _example(
        {
            "families": [
                {
                    "name": "gemm",
                    "kind": "kernel",
                    "summary": "dense product",
                    "spec_schema": {"type": "object"},
                }
            ],
            "next_page_token": "",
            "total": 1,
        }
    )
    families: list[FamilyBody]
    next_page_token: str
    total: int


class EnvironmentBody(BaseModel):
    """What decides keys on this node, besides the spec."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "generation": 3,
                    "kaas_version": "0.1.0",
                    "target": {"soc_name": "Ascend950PR_9579", "cube_cores": 28},
                    "target_source": "configured",
                    "toolchain": {"kind": "twin", "cann_version": "9.1.0"},
                }
            ]
        },
    )
    generation: int
    kaas_version: str
    target: dict[str, Any]
    target_source: str
    toolchain: dict[str, Any]


class HealthBody(BaseModel):
    """The daemon answers."""

    model_config = _example({"status": "serving"})
    status: Literal["serving", "stopping"]


_MISSING: dict[str, Any] = {
    "index": 0,
    "key": KEY,
    "spec": SPEC,
    "soc_name": "Ascend950PR_9579",
    "weight": 61.0,
    "state": "compiling",
    "error": None,
}
_COVERAGE: dict[str, Any] = {
    "coverage": 0.39,
    "total": 2,
    "held": 1,
    "weight": 100.0,
    "held_weight": 39.0,
    "left_out": 0,
    "missing": [_MISSING],
    "soc_name": "Ascend950PR_9579",
    "cann_version": "9.2.0",
}


class CoverageEntryBody(BaseModel):
    """A kernel that is wanted, by `spec` (a composite's, too) or by `key`; empty targets mean the node's."""

    model_config = _strict_example({"spec": SPEC, "weight": 61})
    spec: dict[str, Any] | None = None
    key: str = Field("", max_length=64)
    soc_name: str = Field("", max_length=64)
    cann: str = Field("", max_length=64)
    weight: float = Field(1.0, gt=0, le=1e15, strict=True, allow_inf_nan=False)


class CoverageQuestionBody(BaseModel):
    """Kernels that a node is to hold. Answered at `coverage`, or after `wait_s`."""

    model_config = _strict_example({"entries": [{"spec": SPEC, "weight": 61}]})
    entries: list[CoverageEntryBody] = Field(default_factory=list, max_length=20_000)
    all_targets: bool = Field(False, strict=True)
    missing_limit: int = Field(20, ge=0, le=1000, strict=True)
    coverage: float = Field(0.0, ge=0, le=1, strict=True, allow_inf_nan=False)
    wait_s: float = Field(0.0, ge=0, le=60, strict=True, allow_inf_nan=False)


class MissingKernelBody(BaseModel):
    """A kernel that is not here; a refused one has no key on this node, and `error` says why."""

    model_config = _example(_MISSING)
    index: int
    key: str
    spec: dict[str, Any] | None
    soc_name: str
    weight: float
    state: Literal["missing", "queued", "compiling", "failed", "refused"]
    error: dict[str, Any] | None


class CoverageBody(BaseModel):
    """How much of what was asked for is here; `missing` lists what weighs most."""

    model_config = _example(_COVERAGE)
    coverage: float
    total: int
    held: int
    weight: float
    held_weight: float
    left_out: int
    missing: list[MissingKernelBody]
    soc_name: str
    cann_version: str


class ReadyBody(BaseModel):
    """Whether a miss would be compiled without delay: each check and whether it holds."""

    model_config = _example({"ready": True, "checks": {"workers_warm": True, "store_usable": True}})
    ready: bool
    checks: dict[str, bool]
    coverage: CoverageBody | None = None
