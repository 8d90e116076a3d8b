"""Calls a command like a shell, and captures its output."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command

__all__ = ["Said", "Terminal", "call", "call_json", "type_in"]


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Said(NamedTuple):
    out: str
    err: str


def call(command: str, *arguments: object, terminal: bool = False) -> Said:
    """The command's output, on stdout and stderr."""
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    try:
        call_command(command, *map(str, arguments), stdout=out, stderr=err)
    except (CommandError, SystemExit) as error:
        error.said = Said(out.getvalue(), err.getvalue())  # type: ignore[union-attr]
        raise
    return Said(out.getvalue(), err.getvalue())


def call_json(command: str, *arguments: object) -> Any:
    return json.loads(call(command, *arguments, "--json").out)


def type_in(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    """Set the command's stdin."""
    data = text.encode() if isinstance(text, str) else text
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
