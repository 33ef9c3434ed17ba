"""From what somebody plans to change to what is known of it: exact, certain, or assumed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from kaas.client.forecast import Change
from kaas.client.manifest_document import CANN_VERSION
from kaas.client.store_reader import target_for
from kaas.proto.environment import Environment
from kaas.proto.errors import InternalError, InvalidRequest, error_from_record
from kaas.proto.target import Target

REPORT_LIMIT_S = 300.0
MAX_ENVIRONMENT_BYTES = 1 << 20

_SAME_TIMES = "compiles take as long, and as much memory, as they did"
_SAME_TARGETS = "sizes of other parts than this node's are those of this kaas"


def planned_change(
    now: Environment,
    *,
    sku: str = "",
    cann: str = "",
    kaas_version: str = "",
    toolkit: Path | None = None,
    environment_file: Path | None = None,
) -> Change:
    """What is known of a plan, ``now`` being the store's environment.

    Raises :class:`InvalidRequest` when nothing is planned, or two options contradict each other,
    :class:`UnsupportedTarget`, or :class:`ToolchainMissing` for a toolkit that cannot be used.
    """
    if not (sku or cann or kaas_version or toolkit or environment_file):
        raise InvalidRequest(
            "nothing is planned",
            field="change",
            legal="one or more of --sku, --cann, --toolkit, --kaas-version, --environment",
        )
    if cann and not CANN_VERSION.fullmatch(cann):
        raise InvalidRequest(f"cann is {cann[:80]!r}", field="cann", legal="a version such as 9.3.0")
    if toolkit and environment_file:
        raise InvalidRequest(
            "an environment file says which toolkit it is for",
            field="toolkit",
            legal="--toolkit or --environment",
        )
    target = target_for(now, sku) if sku else None
    words = [f"{target.soc_name}"] if target else []
    can_build, device_options = False, ""
    installed = importlib.metadata.version("ascend-kaas")
    if environment_file is not None:
        after = read_environment_file(environment_file)
        _agree("cann", cann, after.toolchain.cann_version, environment_file)
        _agree("kaas_version", kaas_version, after.kaas_version, environment_file)
    elif toolkit is not None or (kaas_version and kaas_version == installed and not cann):
        if kaas_version and kaas_version != installed:
            raise InvalidRequest(
                f"kaas {kaas_version} is not what is installed here, so that its keys cannot be computed",
                field="kaas_version",
                legal=f"{installed}, or --environment with a file of a store that {kaas_version} serves",
            )
        report = described_with(now, toolkit or Path(now.locality.toolkit_home))
        after, can_build, device_options = report.environment, True, report.device_options
        if cann:
            _agree("cann", cann, after.toolchain.cann_version, toolkit)
    elif not cann and not kaas_version:
        after = now
    else:
        return _unknown(now, target, words, cann, kaas_version)
    if after.toolchain != now.toolchain:
        words.append(f"CANN {after.toolchain.cann_version}")
    if _generator(after) != _generator(now):
        words.append(f"kaas {after.kaas_version}")
    if after.options != now.options:
        words.append("other compile options")
    assumptions = [_SAME_TIMES]
    if environment_file is not None:
        assumptions.append(_SAME_TARGETS)
    return Change(
        reason=", ".join(words) or "the same toolchain and generator",
        environment=after,
        target=target,
        assumptions=tuple(assumptions),
        toolkit=Path(after.locality.toolkit_home) if can_build else None,
        device_options=device_options,
    )


def _unknown(
    now: Environment, target: Target | None, words: list[str], cann: str, kaas_version: str
) -> Change:
    """A version that nobody here can look at."""
    assumptions = [_SAME_TIMES]
    if cann:
        words.append(f"CANN {cann}")
    if kaas_version:
        words.append(f"kaas {kaas_version}")
    if cann and cann != now.toolchain.cann_version:
        # The version itself is in every passport, so whatever else is the same, no key is.
        return Change(", ".join(words), None, target, "certain", tuple(assumptions))
    if kaas_version and kaas_version != now.kaas_version:
        assumptions.append(
            "keys hold digests of kaas's and TileLang's code, not kaas's version, and those of "
            f"{kaas_version} are not known here: every kernel is taken to go cold, though any whose "
            "family, lowering and TileLang are the same stays; --environment compares them"
        )
        return Change(", ".join(words), None, target, "assumed", tuple(assumptions))
    assumptions.append("a toolkit or a kaas of the same version is the same byte for byte; --toolkit looks")
    return Change(", ".join(words), None, target, "assumed", tuple(assumptions), stays=True)


def _agree(field: str, said: str, found: str, where: Path | None) -> None:
    if said and said != found:
        raise InvalidRequest(f"{field} is {said}, and {where} has {found}", field=field, legal=[found])


def _generator(environment: Environment) -> tuple[object, ...]:
    return (
        environment.schema_version,
        environment.tilelang_version,
        environment.tilelang_native_digest,
        environment.templates_digest,
        environment.lowering_digest,
        environment.family_digests,
    )


def read_environment_file(path: Path) -> Environment:
    """An environment as a daemon publishes it in its store, or as ``kaas env --json`` prints it.

    Raises :class:`InvalidRequest`.
    """
    legal = "environment.json of a store, or what kaas env --json printed"
    try:
        content = path.read_bytes()[: MAX_ENVIRONMENT_BYTES + 1]
        if len(content) > MAX_ENVIRONMENT_BYTES:
            raise InvalidRequest(f"{path} is too large", field="environment", legal=legal)
        plain = msgspec.json.decode(content)
        if isinstance(plain, dict) and set(plain) == {"environment", "sha256"}:
            from kaas.cache.environment_file import decode_environment

            found = decode_environment(content)
            if found is None:
                raise InvalidRequest(
                    f"{path} is damaged: it is not what was published", field="environment", legal=legal
                )
            return found
        return msgspec.convert(plain, Environment)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error.strerror}", field="environment", legal=legal
        ) from None
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}", field="environment", legal=legal) from None


class _Report(msgspec.Struct, frozen=True):
    """What the other process says."""

    environment: Environment
    device_options: str


def described_with(now: Environment, toolkit: Path) -> _Report:
    """What a daemon of this installation would publish with the toolkit at ``toolkit``.

    Another process looks at the toolkit, since that takes the compiler's code. Raises what it raised.
    """
    with tempfile.TemporaryDirectory(prefix="kaas-forecast-") as folder:
        file = Path(folder) / "environment.json"
        file.write_bytes(msgspec.json.encode(now))
        command = [sys.executable, "-m", "kaas.compiler.environment_report"]
        command += [f"--toolkit={toolkit.absolute()}", f"--environment={file}"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=REPORT_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise InvalidRequest(
                f"reading the toolkit at {toolkit} took longer than {REPORT_LIMIT_S:.0f} s",
                field="toolkit",
                legal="the home of a toolkit on a disk that answers",
            ) from None
    try:
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=_Report)
        record = msgspec.json.decode(done.stdout)
    except msgspec.DecodeError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise InternalError(
            f"the toolkit at {toolkit} could not be looked at: {lines[-1] if lines else 'no answer'}",
            hint="pip install 'ascend-kaas[daemon]'",
        ) from None
    raise error_from_record(record)
