"""Finds handlers in the project's files that no process imports, so that nothing runs them.

Files that could have some are parsed, and none is imported.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.apps import AppConfig, apps

_DECORATORS = {"consumer", "schedule"}
_MODULES = {"django_pgqueue", "django_pgqueue.handlers", "django_pgqueue.schedules"}
#: Folders of packages that were installed, and of code that a consumer does not need.
_INSTALLED = {"site-packages", "dist-packages"}
_SKIPPED = {"migrations", "test", "tests"}


@dataclass(frozen=True)
class Unimported:
    """A file with handlers. ``app`` is the installed app that has it, or None."""

    path: Path
    functions: list[str]
    app: AppConfig | None = None

    @property
    def module(self) -> str:
        """The import path of the file, such as ``shop.handlers`` or ``shop.jobs.nightly``."""
        assert self.app is not None
        parts = self.path.relative_to(self.app.path).with_suffix("").parts
        return ".".join((self.app.name, *parts)).removesuffix(".__init__")


def unimported() -> Iterator[Unimported]:
    """Yield the files of installed apps with handlers that this process did not import.

    Also yields the ``consumers.py`` of apps beside them that are not installed, and that of the
    settings' package. Call it after ``autodiscover()``. Code in site-packages is not searched.
    """
    installed = {Path(app.path): app for app in apps.get_app_configs()}
    own = {path: app for path, app in installed.items() if not _INSTALLED & set(path.parts)}
    loaded = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
    candidates: dict[Path, AppConfig | None] = {
        path: app for folder, app in own.items() for path in _files(folder, own)
    }
    package = _of_settings()
    packages = [path.parent for each in _beside(package, own) for path in each.glob("*/apps.py")]
    if package is not None and package.name == "__init__.py":
        packages.append(package.parent)
    for folder in packages:
        if folder not in installed and folder.name not in _SKIPPED:
            candidates[folder / "consumers.py"] = None
    for path, app in candidates.items():
        if str(path) in loaded or not (functions := handlers_in(path)):
            continue
        # Python may have imported the file by another path to it.
        namesakes = (each for each in loaded if each and each.endswith(path.name))
        if os.path.realpath(path) not in map(os.path.realpath, namesakes):
            yield Unimported(path, functions, app)


def handlers_in(path: Path) -> list[str]:
    """Return the names of the functions with @consumer or @schedule in a file."""
    try:
        source = path.read_bytes()
        if b"django_pgqueue" not in source or not any(n.encode() in source for n in _DECORATORS):
            return []
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return []  # an import reports that
    names, packages = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES and not node.level:
            names |= {each.asname or each.name for each in node.names if each.name in _DECORATORS}
        elif isinstance(node, ast.Import):
            packages |= {e.asname or e.name for e in node.names if e.name == "django_pgqueue"}
    return [
        function.name
        for function in _defined_by_import(tree)
        if any(_is_ours(each, names, packages) for each in function.decorator_list)
    ]


def _files(folder: Path, own: dict[Path, AppConfig]) -> Iterator[Path]:
    """Yield the modules of an app, but not those of an app within it, nor tests."""
    for where, folders, files in os.walk(folder):
        here = Path(where)
        folders[:] = [
            name
            for name in folders
            if name not in _SKIPPED
            and here / name not in own
            and (here / name / "__init__.py").exists()
        ]
        for name in files:
            if name.endswith(".py") and not name.startswith(("test_", "tests.", "conftest.")):
                yield here / name


def _of_settings() -> Path | None:
    """Return the file of the settings' module, or the ``__init__.py`` of its outermost package."""
    name = os.environ.get("DJANGO_SETTINGS_MODULE", "").partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    return None if file is None else Path(file)


def _beside(file: Path | None, own: dict[Path, AppConfig]) -> set[Path]:
    """Return the folder of the settings' package, and those of the apps within it."""
    if file is None:
        return set()
    root = file.parents[1] if file.name == "__init__.py" else file.parent
    return {root, *(path.parent for path in own if root in path.parents)}


def _defined_by_import(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions that an import of the module defines: not those within functions."""
    left: list[ast.AST] = [tree]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node
            elif isinstance(node, (ast.stmt, ast.ExceptHandler)):
                left.append(node)


def _is_ours(decorator: ast.expr, names: set[str], packages: set[str]) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        within = called.value
        return called.attr in _DECORATORS and isinstance(within, ast.Name) and within.id in packages
    return isinstance(called, ast.Name) and called.id in names
