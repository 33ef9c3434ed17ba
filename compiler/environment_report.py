"""What another daemon of this installation would publish, told as JSON: for whoever plans an upgrade.

``python -m kaas.compiler.environment_report --toolkit HOME --environment FILE`` takes the target and the
further options of a store's environment and describes it anew with this interpreter's kaas and TileLang and
the toolkit at HOME; ``device_options`` is what a daemon has to be told for that. An error is one JSON record
on standard output, and exit status 1. Nothing is written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kaas.compiler.compile_options import extra_options
from kaas.compiler.environment import describe_environment
from kaas.compiler.toolkit import read_toolkit
from kaas.proto.environment import Environment
from kaas.proto.errors import KaasError


def described_anew(before: Environment, home: Path) -> Environment:
    """The environment with the toolkit at ``home`` and the kaas that runs here.

    Raises :class:`ToolchainMissing` naming what the toolkit, or this installation, lacks.
    """
    toolkit = read_toolkit(home, named_by="--toolkit", bisheng_home=os.environ.get("BISHENG_HOME") or None)
    return describe_environment(
        toolkit,
        before.target,
        before.target_source,
        generation=before.generation,
        socket=before.locality.socket,
        extra_options=extra_options(before.options),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one environment."""
    parser = argparse.ArgumentParser(prog="python -m kaas.compiler.environment_report", allow_abbrev=False)
    parser.add_argument("--toolkit", type=Path, required=True, metavar="HOME")
    parser.add_argument("--environment", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)
    try:
        before = msgspec.json.decode(given.environment.read_bytes(), type=Environment)
        after = described_anew(before, given.toolkit)
    except KaasError as error:
        print(msgspec.json.encode(error.to_record()).decode())
        return 1
    answer = {"environment": after, "device_options": " ".join(extra_options(after.options))}
    print(msgspec.json.encode(answer).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
