"""``python -m kaas.server [--config FILE] [--FIELD VALUE ...]``: run the daemon in the foreground."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from kaas.server.config import Config
from kaas.server.daemon import run_daemon


def main() -> int:
    """Parse flags (one per configuration field) and serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m kaas.server", description=__doc__)
    parser.add_argument("--config", type=Path, help="TOML configuration file")
    for field in msgspec.structs.fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name)
    flags = vars(parser.parse_args())
    config_file = flags.pop("config")
    return run_daemon({name: value for name, value in flags.items() if value is not None}, config_file)


if __name__ == "__main__":
    sys.exit(main())
