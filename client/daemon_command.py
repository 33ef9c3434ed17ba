"""``kaas serve``: flags of the daemon's configuration, and the daemon itself, imported only now."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kaas.proto.errors import InvalidConfig, ToolchainMissing

INSTALL_HINT = "install it with: pip install 'ascend-kaas[daemon]'"


def serve(arguments: Sequence[str]) -> int:
    """Run the daemon in the foreground; returns its exit status.

    Raises :class:`ToolchainMissing` when the daemon's own dependencies are not installed.
    """
    # By name: whatever the daemon needs must not become a dependency of the client package.
    config = importlib.import_module("kaas.server.config")
    flags = vars(_parser(config).parse_args(list(arguments)))
    config_file = flags.pop("config")
    try:
        daemon = importlib.import_module("kaas.server.daemon")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "kaas":
            raise
        raise ToolchainMissing(
            f"the daemon needs the Python package {error.name!r}, which is not installed", hint=INSTALL_HINT
        ) from None
    overrides = {name: value for name, value in flags.items() if value is not None}
    return int(daemon.run_daemon(overrides, config_file))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InvalidConfig(message, hint="see: kaas serve --help", source="flag")


def _parser(config: Any) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kaas serve",
        description="Serve kernels on this node until stopped. Every flag is also a field of the TOML file "
        "and an environment variable KAAS_<FIELD>; flags win, then the environment, then the file.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML configuration file")
    defaults = config.Config()
    for name in config.Config.__struct_fields__:
        default = str(getattr(defaults, name)).replace("%", "%%")
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=f"default: {default or '(none)'}"
        )
    return parser
