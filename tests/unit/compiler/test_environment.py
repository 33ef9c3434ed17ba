"""The published environment: complete for keys, and free of this node's paths outside its locality."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kaas.compiler.environment import describe_environment
from kaas.compiler.toolkit import Toolkit
from kaas.kernel_library.registry import families, parse_spec
from kaas.kernel_library.targets import target_named
from kaas.proto.passport import differences
from kaas.proto.toolchain import Toolchain

TARGET = target_named("Ascend950PR_9579")
IDENTITY = Toolchain(
    kind="cann",
    cann_version="9.2.0",
    compiler_version="clang 15.0.5",
    bisheng_digest="1" * 64,
    linker_digest="2" * 64,
    headers_digest="3" * 64,
    host_arch="aarch64",
)


def toolkit(home: str, identity: Toolchain = IDENTITY) -> Toolkit:
    root = Path(home)
    return Toolkit(
        home=root,
        kind=identity.kind,
        identity=identity,
        bisheng=root / "bin" / "bisheng",
        linker=root / "bin" / "ld.lld",
        acl_library=root / "lib64" / "libascendcl.so",
        include_directories=(root / "include",),
    )


def describe(home: str = "/opt/cann", identity: Toolchain = IDENTITY, **fields):
    arguments = {"generation": 1, "socket": "/run/kaas/kaas.sock", **fields}
    return describe_environment(toolkit(home, identity), TARGET, "configured", **arguments)


def test_passports_depend_on_content_and_never_on_a_place():
    spec = parse_spec({"family": "gemm", "n": 128, "k": 64}).to_record()
    here = describe().passport(spec)
    there = describe("/usr/local/Ascend/cann-9.2.0", generation=7, socket="/tmp/other.sock").passport(spec)

    assert here.key() == there.key()
    assert b"/" not in msgspec.json.encode(here)


def test_every_family_has_a_digest():
    assert describe().family_digests.keys() == families().keys()


def test_a_changed_compiler_or_option_is_exactly_what_differs():
    spec = parse_spec({"family": "gemm", "n": 128, "k": 64}).to_record()
    before = describe().passport(spec)
    other_compiler = msgspec.structs.replace(IDENTITY, bisheng_digest="4" * 64)

    def paths(environment) -> list[str]:
        return [difference.path for difference in differences(before, environment.passport(spec))]

    assert paths(describe(identity=other_compiler)) == ["toolchain.bisheng_digest"]
    assert paths(describe(extra_options=["-DX"])) == ["options"]


def test_the_locality_holds_what_a_launch_needs():
    locality = describe().locality

    assert locality.acl_library == "/opt/cann/lib64/libascendcl.so"
    assert locality.toolkit_home == "/opt/cann"
    assert locality.socket == "/run/kaas/kaas.sock"
