from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_RANK: _ClassVar[Priority]
    PRIORITY_PREWARM: _ClassVar[Priority]
    PRIORITY_USER: _ClassVar[Priority]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_HIT: _ClassVar[Outcome]
    OUTCOME_COMPILED: _ClassVar[Outcome]
    OUTCOME_JOINED: _ClassVar[Outcome]
    OUTCOME_FETCHED: _ClassVar[Outcome]

class Liveness(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIVENESS_UNSPECIFIED: _ClassVar[Liveness]
    LIVENESS_ALIVE: _ClassVar[Liveness]
    LIVENESS_ENDED: _ClassVar[Liveness]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_RANK: Priority
PRIORITY_PREWARM: Priority
PRIORITY_USER: Priority
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_HIT: Outcome
OUTCOME_COMPILED: Outcome
OUTCOME_JOINED: Outcome
OUTCOME_FETCHED: Outcome
LIVENESS_UNSPECIFIED: Liveness
LIVENESS_ALIVE: Liveness
LIVENESS_ENDED: Liveness

class ClientIdentity(_message.Message):
    __slots__ = ("pid", "job", "rank")
    PID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    pid: int
    job: str
    rank: str
    def __init__(self, pid: _Optional[int] = ..., job: _Optional[str] = ..., rank: _Optional[str] = ...) -> None: ...

class GetKernelRequest(_message.Message):
    __slots__ = ("spec_json", "soc_name", "priority", "strict", "inline_artifact", "client")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    INLINE_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    spec_json: bytes
    soc_name: str
    priority: Priority
    strict: bool
    inline_artifact: bool
    client: ClientIdentity
    def __init__(self, spec_json: _Optional[bytes] = ..., soc_name: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., strict: _Optional[bool] = ..., inline_artifact: _Optional[bool] = ..., client: _Optional[_Union[ClientIdentity, _Mapping]] = ...) -> None: ...

class GetKernelResponse(_message.Message):
    __slots__ = ("key", "outcome", "artifact_path", "artifact", "compile_seconds", "waited_seconds", "environment_generation")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_PATH_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    key: str
    outcome: Outcome
    artifact_path: str
    artifact: bytes
    compile_seconds: float
    waited_seconds: float
    environment_generation: int
    def __init__(self, key: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., artifact_path: _Optional[str] = ..., artifact: _Optional[bytes] = ..., compile_seconds: _Optional[float] = ..., waited_seconds: _Optional[float] = ..., environment_generation: _Optional[int] = ...) -> None: ...

class KernelSummary(_message.Message):
    __slots__ = ("key", "family", "spec_json", "soc_name", "cann_version", "toolchain_kind", "dtype", "state", "size_bytes", "created_unix", "compile_seconds", "hits", "current", "place", "estimate_s", "error", "leases", "pinned")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    CANN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOLCHAIN_KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_FIELD_NUMBER: _ClassVar[int]
    COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    key: str
    family: str
    spec_json: str
    soc_name: str
    cann_version: str
    toolchain_kind: str
    dtype: str
    state: str
    size_bytes: int
    created_unix: float
    compile_seconds: float
    hits: int
    current: bool
    place: int
    estimate_s: float
    error: str
    leases: int
    pinned: bool
    def __init__(self, key: _Optional[str] = ..., family: _Optional[str] = ..., spec_json: _Optional[str] = ..., soc_name: _Optional[str] = ..., cann_version: _Optional[str] = ..., toolchain_kind: _Optional[str] = ..., dtype: _Optional[str] = ..., state: _Optional[str] = ..., size_bytes: _Optional[int] = ..., created_unix: _Optional[float] = ..., compile_seconds: _Optional[float] = ..., hits: _Optional[int] = ..., current: _Optional[bool] = ..., place: _Optional[int] = ..., estimate_s: _Optional[float] = ..., error: _Optional[str] = ..., leases: _Optional[int] = ..., pinned: _Optional[bool] = ...) -> None: ...

class ListKernelsRequest(_message.Message):
    __slots__ = ("family", "soc_name", "cann_version", "dtype", "state", "text", "page_size", "page_token")
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    CANN_VERSION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    family: str
    soc_name: str
    cann_version: str
    dtype: str
    state: str
    text: str
    page_size: int
    page_token: str
    def __init__(self, family: _Optional[str] = ..., soc_name: _Optional[str] = ..., cann_version: _Optional[str] = ..., dtype: _Optional[str] = ..., state: _Optional[str] = ..., text: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListKernelsResponse(_message.Message):
    __slots__ = ("kernels", "next_page_token", "total")
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    kernels: _containers.RepeatedCompositeFieldContainer[KernelSummary]
    next_page_token: str
    total: int
    def __init__(self, kernels: _Optional[_Iterable[_Union[KernelSummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class DescribeKernelRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class DescribeKernelResponse(_message.Message):
    __slots__ = ("summary", "passport_json", "launch_json", "choices_json", "source", "log", "artifact_path")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PASSPORT_JSON_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_JSON_FIELD_NUMBER: _ClassVar[int]
    CHOICES_JSON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_PATH_FIELD_NUMBER: _ClassVar[int]
    summary: KernelSummary
    passport_json: str
    launch_json: str
    choices_json: str
    source: str
    log: str
    artifact_path: str
    def __init__(self, summary: _Optional[_Union[KernelSummary, _Mapping]] = ..., passport_json: _Optional[str] = ..., launch_json: _Optional[str] = ..., choices_json: _Optional[str] = ..., source: _Optional[str] = ..., log: _Optional[str] = ..., artifact_path: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("spec_json", "soc_name")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    spec_json: bytes
    soc_name: str
    def __init__(self, spec_json: _Optional[bytes] = ..., soc_name: _Optional[str] = ...) -> None: ...

class FieldDifference(_message.Message):
    __slots__ = ("path", "wanted_json", "cached_json")
    PATH_FIELD_NUMBER: _ClassVar[int]
    WANTED_JSON_FIELD_NUMBER: _ClassVar[int]
    CACHED_JSON_FIELD_NUMBER: _ClassVar[int]
    path: str
    wanted_json: str
    cached_json: str
    def __init__(self, path: _Optional[str] = ..., wanted_json: _Optional[str] = ..., cached_json: _Optional[str] = ...) -> None: ...

class NearArtifact(_message.Message):
    __slots__ = ("key", "differences")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    key: str
    differences: _containers.RepeatedCompositeFieldContainer[FieldDifference]
    def __init__(self, key: _Optional[str] = ..., differences: _Optional[_Iterable[_Union[FieldDifference, _Mapping]]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("key", "hit", "reason", "nearest", "passport_json", "failure")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    PASSPORT_JSON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    key: str
    hit: bool
    reason: str
    nearest: _containers.RepeatedCompositeFieldContainer[NearArtifact]
    passport_json: str
    failure: Failure
    def __init__(self, key: _Optional[str] = ..., hit: _Optional[bool] = ..., reason: _Optional[str] = ..., nearest: _Optional[_Iterable[_Union[NearArtifact, _Mapping]]] = ..., passport_json: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("key", "family", "spec_json", "soc_name", "cann_version", "toolchain_kind", "kind", "attempts", "failed_unix", "expires_unix", "answered", "error_json")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    CANN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOLCHAIN_KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_UNIX_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    key: str
    family: str
    spec_json: str
    soc_name: str
    cann_version: str
    toolchain_kind: str
    kind: str
    attempts: int
    failed_unix: float
    expires_unix: float
    answered: int
    error_json: str
    def __init__(self, key: _Optional[str] = ..., family: _Optional[str] = ..., spec_json: _Optional[str] = ..., soc_name: _Optional[str] = ..., cann_version: _Optional[str] = ..., toolchain_kind: _Optional[str] = ..., kind: _Optional[str] = ..., attempts: _Optional[int] = ..., failed_unix: _Optional[float] = ..., expires_unix: _Optional[float] = ..., answered: _Optional[int] = ..., error_json: _Optional[str] = ...) -> None: ...

class ListFailuresRequest(_message.Message):
    __slots__ = ("family", "page_size", "page_token")
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    family: str
    page_size: int
    page_token: str
    def __init__(self, family: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListFailuresResponse(_message.Message):
    __slots__ = ("failures", "next_page_token", "total")
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    next_page_token: str
    total: int
    def __init__(self, failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class ClearFailuresRequest(_message.Message):
    __slots__ = ("key", "all")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    key: str
    all: bool
    def __init__(self, key: _Optional[str] = ..., all: _Optional[bool] = ...) -> None: ...

class ClearFailuresResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class PrewarmRequest(_message.Message):
    __slots__ = ("entries", "label")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[PrewarmEntry]
    label: str
    def __init__(self, entries: _Optional[_Iterable[_Union[PrewarmEntry, _Mapping]]] = ..., label: _Optional[str] = ...) -> None: ...

class PrewarmEntry(_message.Message):
    __slots__ = ("spec_json", "soc_name")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    spec_json: bytes
    soc_name: str
    def __init__(self, spec_json: _Optional[bytes] = ..., soc_name: _Optional[str] = ...) -> None: ...

class PrewarmEvent(_message.Message):
    __slots__ = ("total", "done", "ready", "failed", "index", "key", "outcome", "error_json", "seconds", "finished", "job_id")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    total: int
    done: int
    ready: int
    failed: int
    index: int
    key: str
    outcome: Outcome
    error_json: str
    seconds: float
    finished: bool
    job_id: str
    def __init__(self, total: _Optional[int] = ..., done: _Optional[int] = ..., ready: _Optional[int] = ..., failed: _Optional[int] = ..., index: _Optional[int] = ..., key: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., error_json: _Optional[str] = ..., seconds: _Optional[float] = ..., finished: _Optional[bool] = ..., job_id: _Optional[str] = ...) -> None: ...

class CoverageEntry(_message.Message):
    __slots__ = ("spec_json", "key", "soc_name", "cann", "weight")
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    CANN_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    spec_json: bytes
    key: str
    soc_name: str
    cann: str
    weight: float
    def __init__(self, spec_json: _Optional[bytes] = ..., key: _Optional[str] = ..., soc_name: _Optional[str] = ..., cann: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class GetCoverageRequest(_message.Message):
    __slots__ = ("entries", "all_targets", "missing_limit", "coverage", "wait_s")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ALL_TARGETS_FIELD_NUMBER: _ClassVar[int]
    MISSING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[CoverageEntry]
    all_targets: bool
    missing_limit: int
    coverage: float
    wait_s: float
    def __init__(self, entries: _Optional[_Iterable[_Union[CoverageEntry, _Mapping]]] = ..., all_targets: _Optional[bool] = ..., missing_limit: _Optional[int] = ..., coverage: _Optional[float] = ..., wait_s: _Optional[float] = ...) -> None: ...

class MissingKernel(_message.Message):
    __slots__ = ("index", "key", "spec_json", "soc_name", "weight", "state", "error_json")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    index: int
    key: str
    spec_json: str
    soc_name: str
    weight: float
    state: str
    error_json: str
    def __init__(self, index: _Optional[int] = ..., key: _Optional[str] = ..., spec_json: _Optional[str] = ..., soc_name: _Optional[str] = ..., weight: _Optional[float] = ..., state: _Optional[str] = ..., error_json: _Optional[str] = ...) -> None: ...

class GetCoverageResponse(_message.Message):
    __slots__ = ("coverage", "total", "held", "weight", "held_weight", "left_out", "missing", "soc_name", "cann_version")
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    HELD_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    CANN_VERSION_FIELD_NUMBER: _ClassVar[int]
    coverage: float
    total: int
    held: int
    weight: float
    held_weight: float
    left_out: int
    missing: _containers.RepeatedCompositeFieldContainer[MissingKernel]
    soc_name: str
    cann_version: str
    def __init__(self, coverage: _Optional[float] = ..., total: _Optional[int] = ..., held: _Optional[int] = ..., weight: _Optional[float] = ..., held_weight: _Optional[float] = ..., left_out: _Optional[int] = ..., missing: _Optional[_Iterable[_Union[MissingKernel, _Mapping]]] = ..., soc_name: _Optional[str] = ..., cann_version: _Optional[str] = ...) -> None: ...

class GetEnvironmentRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEnvironmentResponse(_message.Message):
    __slots__ = ("environment_json",)
    ENVIRONMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    environment_json: str
    def __init__(self, environment_json: _Optional[str] = ...) -> None: ...

class ListFamiliesRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Family(_message.Message):
    __slots__ = ("name", "summary", "spec_schema_json", "page")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SPEC_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    summary: str
    spec_schema_json: str
    page: str
    def __init__(self, name: _Optional[str] = ..., summary: _Optional[str] = ..., spec_schema_json: _Optional[str] = ..., page: _Optional[str] = ...) -> None: ...

class ListFamiliesResponse(_message.Message):
    __slots__ = ("families",)
    FAMILIES_FIELD_NUMBER: _ClassVar[int]
    families: _containers.RepeatedCompositeFieldContainer[Family]
    def __init__(self, families: _Optional[_Iterable[_Union[Family, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("key", "pid", "uid", "user", "job", "rank", "since_unix", "session")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    key: str
    pid: int
    uid: int
    user: str
    job: str
    rank: str
    since_unix: float
    session: str
    def __init__(self, key: _Optional[str] = ..., pid: _Optional[int] = ..., uid: _Optional[int] = ..., user: _Optional[str] = ..., job: _Optional[str] = ..., rank: _Optional[str] = ..., since_unix: _Optional[float] = ..., session: _Optional[str] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("key", "page_size", "page_token")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    key: str
    page_size: int
    page_token: str
    def __init__(self, key: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page_token", "total")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    next_page_token: str
    total: int
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class PinRecord(_message.Message):
    __slots__ = ("key", "reason", "since_unix", "expires_unix", "stored")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    key: str
    reason: str
    since_unix: float
    expires_unix: float
    stored: bool
    def __init__(self, key: _Optional[str] = ..., reason: _Optional[str] = ..., since_unix: _Optional[float] = ..., expires_unix: _Optional[float] = ..., stored: _Optional[bool] = ...) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins", "next_page_token", "total")
    PINS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[PinRecord]
    next_page_token: str
    total: int
    def __init__(self, pins: _Optional[_Iterable[_Union[PinRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("keys", "entries", "reason", "expires_s")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    entries: _containers.RepeatedCompositeFieldContainer[PrewarmEntry]
    reason: str
    expires_s: float
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., entries: _Optional[_Iterable[_Union[PrewarmEntry, _Mapping]]] = ..., reason: _Optional[str] = ..., expires_s: _Optional[float] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[PinRecord]
    def __init__(self, pins: _Optional[_Iterable[_Union[PinRecord, _Mapping]]] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("keys", "entries")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    entries: _containers.RepeatedCompositeFieldContainer[PrewarmEntry]
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., entries: _Optional[_Iterable[_Union[PrewarmEntry, _Mapping]]] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class KernelUser(_message.Message):
    __slots__ = ("pid", "uid", "user", "job", "rank", "since_unix", "origin", "liveness", "session", "ended_unix")
    PID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_FIELD_NUMBER: _ClassVar[int]
    pid: int
    uid: int
    user: str
    job: str
    rank: str
    since_unix: float
    origin: str
    liveness: Liveness
    session: str
    ended_unix: float
    def __init__(self, pid: _Optional[int] = ..., uid: _Optional[int] = ..., user: _Optional[str] = ..., job: _Optional[str] = ..., rank: _Optional[str] = ..., since_unix: _Optional[float] = ..., origin: _Optional[str] = ..., liveness: _Optional[_Union[Liveness, str]] = ..., session: _Optional[str] = ..., ended_unix: _Optional[float] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("key", "users")
    KEY_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    key: str
    users: _containers.RepeatedCompositeFieldContainer[KernelUser]
    def __init__(self, key: _Optional[str] = ..., users: _Optional[_Iterable[_Union[KernelUser, _Mapping]]] = ...) -> None: ...

class QuarantineRequest(_message.Message):
    __slots__ = ("key", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: str
    reason: str
    def __init__(self, key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class QuarantineResponse(_message.Message):
    __slots__ = ("key", "file", "users")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    key: str
    file: str
    users: _containers.RepeatedCompositeFieldContainer[KernelUser]
    def __init__(self, key: _Optional[str] = ..., file: _Optional[str] = ..., users: _Optional[_Iterable[_Union[KernelUser, _Mapping]]] = ...) -> None: ...

class AuditRecord(_message.Message):
    __slots__ = ("when_unix", "event", "key", "record_json")
    WHEN_UNIX_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECORD_JSON_FIELD_NUMBER: _ClassVar[int]
    when_unix: float
    event: str
    key: str
    record_json: str
    def __init__(self, when_unix: _Optional[float] = ..., event: _Optional[str] = ..., key: _Optional[str] = ..., record_json: _Optional[str] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("key", "event", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: str
    event: str
    limit: int
    def __init__(self, key: _Optional[str] = ..., event: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[AuditRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[AuditRecord, _Mapping]]] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("usage_json",)
    USAGE_JSON_FIELD_NUMBER: _ClassVar[int]
    usage_json: str
    def __init__(self, usage_json: _Optional[str] = ...) -> None: ...

class ScrubRequest(_message.Message):
    __slots__ = ("start",)
    START_FIELD_NUMBER: _ClassVar[int]
    start: bool
    def __init__(self, start: _Optional[bool] = ...) -> None: ...

class ScrubResponse(_message.Message):
    __slots__ = ("passes", "running", "asked_for", "checked", "checked_bytes", "damaged", "damaged_keys", "finished_unix", "skipped", "failures", "trouble")
    PASSES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ASKED_FOR_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    CHECKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_KEYS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_UNIX_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    passes: int
    running: bool
    asked_for: int
    checked: int
    checked_bytes: int
    damaged: int
    damaged_keys: _containers.RepeatedScalarFieldContainer[str]
    finished_unix: float
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedDirectory]
    failures: int
    trouble: str
    def __init__(self, passes: _Optional[int] = ..., running: _Optional[bool] = ..., asked_for: _Optional[int] = ..., checked: _Optional[int] = ..., checked_bytes: _Optional[int] = ..., damaged: _Optional[int] = ..., damaged_keys: _Optional[_Iterable[str]] = ..., finished_unix: _Optional[float] = ..., skipped: _Optional[_Iterable[_Union[SkippedDirectory, _Mapping]]] = ..., failures: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class SkippedDirectory(_message.Message):
    __slots__ = ("path", "reason")
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    path: str
    reason: str
    def __init__(self, path: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ForeignKernel(_message.Message):
    __slots__ = ("key", "sha256", "signatures", "file")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    key: str
    sha256: str
    signatures: str
    file: str
    def __init__(self, key: _Optional[str] = ..., sha256: _Optional[str] = ..., signatures: _Optional[str] = ..., file: _Optional[str] = ...) -> None: ...

class ImportKernelsRequest(_message.Message):
    __slots__ = ("kernels",)
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    kernels: _containers.RepeatedCompositeFieldContainer[ForeignKernel]
    def __init__(self, kernels: _Optional[_Iterable[_Union[ForeignKernel, _Mapping]]] = ...) -> None: ...

class ImportKernelsResponse(_message.Message):
    __slots__ = ("added", "present")
    ADDED_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    added: int
    present: int
    def __init__(self, added: _Optional[int] = ..., present: _Optional[int] = ...) -> None: ...
