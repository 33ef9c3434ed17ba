"""The shapes of REST bodies on leases, pins, users and the audit."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kaas.server.rest_models import KEY, SPEC, PrewarmEntryBody

_LEASE: dict[str, Any] = {
    "key": KEY,
    "pid": 4242,
    "uid": 1000,
    "user": "trainer",
    "job": "81723",
    "rank": "3",
    "since_unix": 1790000000.0,
    "session": "a1b2c3d4e5f6",
}
_PIN: dict[str, Any] = {
    "key": KEY,
    "reason": "release 7",
    "since_unix": 1790000000.0,
    "expires_unix": 0.0,
    "stored": True,
}
_USER: dict[str, Any] = {**_LEASE, "origin": "store", "liveness": "alive", "ended_unix": 0.0}
del _USER["key"]
_RECORD: dict[str, Any] = {
    "when_unix": 1790000000.0,
    "event": "request",
    "key": KEY,
    "outcome": "compiled",
    "why": "Not cached: the store holds no kernel of the family 'gemm' at all.",
    "pid": 4242,
}


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]})


def _strict_example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]}, extra="forbid")


class LeaseBody(BaseModel):
    """A kernel that a live process holds; ``pid`` is 0 for one in a foreign pid namespace."""

    model_config = _example(_LEASE)
    key: str
    pid: int
    uid: int
    user: str
    job: str
    rank: str
    since_unix: float
    session: str


class LeasePageBody(BaseModel):
    """A page of leases, by connection; ``next_page_token`` is empty on the last one."""

    model_config = _example({"leases": [_LEASE], "next_page_token": "", "total": 1})
    leases: list[LeaseBody]
    next_page_token: str
    total: int


class PinBody(BaseModel):
    """A pin; ``expires_unix`` 0 means until it is unpinned, ``stored`` that its kernel is there."""

    model_config = _example(_PIN)
    key: str
    reason: str
    since_unix: float
    expires_unix: float
    stored: bool


class PinPageBody(BaseModel):
    """A page of pins, newest first; ``next_page_token`` is empty on the last one."""

    model_config = _example({"pins": [_PIN], "next_page_token": "", "total": 1})
    pins: list[PinBody]
    next_page_token: str
    total: int


class PinsBody(BaseModel):
    """Kernels to keep, by key or by spec; they need not exist yet."""

    model_config = _strict_example(
        {"keys": [], "entries": [{"spec": SPEC}], "reason": "release 7", "expires_s": 86400}
    )
    keys: list[str] = Field([], max_length=20_000)
    entries: list[PrewarmEntryBody] = Field([], max_length=20_000)
    reason: str = Field(min_length=1, max_length=500)
    expires_s: float = Field(
        0.0, ge=0, le=3_153_600_000, allow_inf_nan=False, description="0: until it is unpinned"
    )


class NewPinsBody(BaseModel):
    """Pins just made."""

    model_config = _example({"pins": [_PIN]})
    pins: list[PinBody]


class UnpinnedBody(BaseModel):
    """Keys that were pinned and are not any more."""

    model_config = _example({"keys": [KEY]})
    keys: list[str]


class UserBody(BaseModel):
    """A process that took a kernel. ``unknown``: it told the daemon of no process on this node."""

    model_config = _example(_USER)
    pid: int
    uid: int
    user: str
    job: str
    rank: str
    since_unix: float
    origin: Literal["store", "hit", "compiled", "joined", "fetched", "held"]
    liveness: Literal["alive", "ended", "unknown"]
    session: str
    ended_unix: float = Field(description="when a process that ended did; 0: it runs, or nobody noticed")


class UsersBody(BaseModel):
    """Who uses a kernel or used it: live processes first, then the latest."""

    model_config = _example({"key": KEY, "users": [_USER]})
    key: str
    users: list[UserBody]


class QuarantineBody(BaseModel):
    """Why a kernel is taken out of service."""

    model_config = _strict_example({"reason": "wrong results in layer 3"})
    reason: str = Field(min_length=1, max_length=500)


class QuarantinedBody(BaseModel):
    """A kernel out of service: its file in the quarantine, and processes that go on with what they hold."""

    model_config = _example({"key": KEY, "file": f"1790000000000000-{KEY}", "users": [_USER]})
    key: str
    file: str
    users: list[UserBody]


class AuditBody(BaseModel):
    """The end of the audit log, newest first."""

    model_config = _example({"records": [_RECORD]})
    records: list[dict[str, Any]]


class UsageBody(BaseModel):
    """What the store takes, its limits (0: none), and what is held, pinned, waiting in memory or lost."""

    model_config = _example(
        {
            "used": {"bytes": 48213, "files": 1, "is_measured": True},
            "limits": {"soft_bytes": 17179869184, "hard_bytes": 25769803776},
            "evicted": 0,
            "over_limit_but_in_use": False,
            "in_memory": {"kernels": 0, "bytes": 0, "dropped": 0},
            "leases": {"processes": 8, "kernels_held": 96, "unrecorded": 0},
            "pins": 0,
            "audit_lost": 0,
            "scrub": {"passes": 1, "checked": 1, "damaged": 0},
            "daemon_resident_bytes": 83886080,
        }
    )
    used: dict[str, Any]
    limits: dict[str, Any]
    evicted: int
    over_limit_but_in_use: bool
    in_memory: dict[str, int]
    leases: dict[str, int]
    pins: int
    audit_lost: int
    scrub: dict[str, int]
    daemon_resident_bytes: int = Field(description="memory of the daemon, without its compile workers")


class SkippedDirectoryBody(BaseModel):
    """A directory whose artifacts were not checked."""

    path: str
    reason: str


class ScrubBody(BaseModel):
    """The check of all artifacts: the pass under way, or the last. Done when ``passes`` is ``asked_for``."""

    model_config = _example(
        {
            "passes": 1,
            "running": False,
            "asked_for": 1,
            "checked": 96,
            "checked_bytes": 4821300,
            "damaged": 0,
            "damaged_keys": [],
            "finished_unix": 1790000000.0,
            "skipped": [],
            "failures": 0,
            "trouble": "",
        }
    )
    passes: int
    running: bool
    asked_for: int
    checked: int
    checked_bytes: int
    damaged: int
    damaged_keys: list[str]
    finished_unix: float
    skipped: list[SkippedDirectoryBody]
    failures: int = Field(description="passes that could not be made, as the store could not be listed")
    trouble: str = Field(description="why the last of them could not; empty since a pass was made")
