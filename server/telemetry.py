"""Logging set-up: one line per event, text or JSON, to standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from kaas.proto.log_facts import FACTS_ATTRIBUTE
from kaas.server.config import Config


class TextFormatter(logging.Formatter):
    """``2026-01-31 12:00:00 INFO kaas.server.service: message key=...``, control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by the traceback if there is one."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        pairs = " ".join(f"{name}={_plain(value)}" for name, value in _facts_of(record).items())
        line = f"{stamp} {record.levelname} {record.name}: {_escaped(record.getMessage())}"
        if pairs:
            line += " " + pairs
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time (Unix seconds), level, logger, message, facts, and the traceback if there is one."""
        entry: dict[str, Any] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts_of(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _facts_of(record: logging.LogRecord) -> dict[str, Any]:
    values: dict[str, Any] = getattr(record, FACTS_ATTRIBUTE, {})
    return values


def _escaped(text: str) -> str:
    # What a client sent must not be able to forge a second line.
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _plain(value: Any) -> str:
    text = _escaped(str(value))
    return json.dumps(text) if " " in text or '"' in text else text


def configure_logging(config: Config) -> None:
    """Send everything of ``kaas`` at the configured level, and others' warnings, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("kaas").setLevel(config.log_level.upper())
