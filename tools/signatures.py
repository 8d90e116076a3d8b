"""Write out the signatures of all operations, for type checkers and editors.

    python -m tools.signatures            # writes django_pgqueue/models/methods.pyi
    python -m tools.signatures --check    # ends with 1 when that file is not up to date

The operations are made from functions of the engine when their classes are (see
``django_pgqueue/models/operation.py``), which no type checker can follow in both forms: with the
queue as the first argument, and without.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "django_pgqueue" / "models" / "methods.pyi"
HEADER = '"""The signatures of all operations. Written by tools/signatures.py, not by hand."""\n'
MANAGER = "(models.Manager[Message])"


def main(arguments: list[str]) -> int:
    text = formatted(stub())
    if "--check" in arguments:
        if STUB.read_text() == text:
            return 0
        print(f"{STUB.relative_to(ROOT)} is not up to date: run python -m tools.signatures.")
        return 1
    STUB.write_text(text)
    return 0


def stub() -> str:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from django_pgqueue.models import methods

    imports = {
        "from django.db import models",
        "from django_pgqueue.models.message import Message",
        "from django_pgqueue.models.queryset import MessageQuerySet",
        "from django_pgqueue.models.queue import Queue",
    }
    classes = []
    for owner, bases in ((methods.QueueOperations, ""), (methods.MessageManager, MANAGER)):
        lines = [f'class {owner.__name__}{bases}:\n    """{summary(owner)}"""\n']
        for method in methods_of(owner):
            function = getattr(owner, method)
            imports |= set(imports_of(function))
            lines.append(written(owner, method, function))
        classes.append("\n".join(lines))
    abroad = sorted(each for each in imports if f"from {methods.__name__} " not in each)
    return "\n".join([HEADER, *abroad, "", *classes])


def methods_of(owner: type) -> list[str]:
    """The public methods in source order, the class's own first."""
    return [
        name
        for each in owner.__mro__
        if each.__module__ == owner.__module__
        for name in vars(each)
        if not name.startswith("_") and callable(getattr(owner, name))
    ]


def written(owner: type, name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    if name.startswith("a") and name[1:] in dir(owner):
        signature = inspect.signature(getattr(owner, name[1:]))
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    shown = ", ".join(parts(signature))
    # Copies the first line's "type: ignore": it marks a signature that differs from Django's.
    ignored = re.search(r"  # type: ignore.*", inspect.getsource(function).partition("\n")[0])
    opening = f"    {word} {name}({shown}) -> {signature.return_annotation}:"
    return f'{opening}{ignored[0] if ignored else ""}\n        """{summary(function)}"""\n'


def summary(documented: Any) -> str:
    return inspect.cleandoc(documented.__doc__ or "").split("\n\n")[0]


def parts(signature: inspect.Signature) -> Iterator[str]:
    """The parameters as source text; ``str(signature)`` would quote annotations."""
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        annotated = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        yield f"{parameter.name}{annotated}{default}"


def imports_of(function: Callable[..., Any]) -> Iterator[str]:
    """The imports needed by a function's annotations."""
    act = inspect.unwrap(function)
    for annotation in inspect.get_annotations(act).values():
        for node in ast.walk(ast.parse(str(annotation))):
            if isinstance(node, ast.Name) and node.id in act.__globals__:
                yield import_of(node.id, act.__globals__[node.id], act.__module__)


def import_of(name: str, value: Any, module: str) -> str:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    home = getattr(value, "__module__", None)
    if home in {None, "types", "typing"} and name not in vars(sys.modules["typing"]):
        # An alias is imported from the module that defines it.
        homes = [
            each
            for each, found in sys.modules.items()
            if each.startswith("django_pgqueue") and name in getattr(found, "__all__", ())
        ]
        home = next(iter(homes), module)
    return f"from {home} import {name}"


def formatted(text: str) -> str:
    for command in (["check", "--quiet", "--select=I,F401", "--fix"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if not done.stdout:
            raise SystemExit(f"ruff could not format the signatures:\n{done.stderr}")
        text = done.stdout
    return text


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
