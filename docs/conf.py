"""The documentation as a site: ``python3 run.py docs`` builds it into ``docs/_build/html``.

The pages are plain Markdown, readable on a forge. Two things are made from others, so that each is
said once: the menu is the lists of index.md, and the reference the docstrings of public names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import django  # noqa: E402
from django.conf import settings  # noqa: E402

# Of its own, so that a build of the site needs nothing that only the tests need.
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_pgqueue"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
)
django.setup()

from django.db import models  # noqa: E402

import django_pgqueue  # noqa: E402
from tools.public_names import PUBLIC  # noqa: E402

project = "django_pgqueue"
author = "django_pgqueue contributors"
copyright = author
release = version = django_pgqueue.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
suppress_warnings = ["misc.highlighting_failure"]  # a glob with /**/ in SQL
root_doc = "index"
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"django_pgqueue {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_search_scorer = str(DOCS / "scorer.js")
pygments_style, pygments_dark_style = "friendly", "github-dark"

myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"

# Names in a signature are short, and lead nowhere outside: no inventory is fetched.
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
nitpicky = True
_public = "|".join(rf"{re.escape(m)}\.{name}" for m, names in PUBLIC.items() for name in names)
nitpick_ignore_regex = [("py:.*", rf"(?!({_public})$).*")]  # the rest has no page here

linkcheck_timeout = 20
linkcheck_ignore = [r"http://localhost.*", r"https?://127\.0\.0\.1.*"]


def make_reference(app) -> None:
    """One page for each public module, from its docstrings."""
    folder = DOCS / "api"
    folder.mkdir(exist_ok=True)
    wanted = {}
    for module, names in PUBLIC.items():
        text = [f".. automodule:: {module}"]
        if module == "django_pgqueue":  # its names are other modules', looked up at first use
            homes = [f"{django_pgqueue._HOMES[name]}.{name}" for name in names]
            text += [
                "",
                *(f"* :py:obj:`{name} <{home}>`" for name, home in zip(names, homes, strict=True)),
            ]
        else:
            text += [f"   :members: {', '.join(names)}", "   :imported-members:"]
            text += ["   :inherited-members: Model, Exception, tuple, list, str, BaseTaskBackend"]
        page = [f"# {module}", "", "```{eval-rst}", *text, "```", ""]
        wanted[folder / f"{module}.md"] = "\n".join(page)
    for page in set(folder.glob("*.md")) - set(wanted):
        page.unlink()
    for page, text in wanted.items():
        if not page.exists() or page.read_text() != text:
            page.write_text(text, encoding="utf-8")


def edit_page(app, docname, source) -> None:
    """The menu, from the headings of index.md with the pages that they list; no links outside.

    The modules in the first column of a table lead to their pages.
    """
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2` in the source)", source[0])
    if docname == root_doc:
        for title, body in re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", source[0], re.MULTILINE):
            pages = re.findall(r"\]\((\w+)\.md\)", body)
            source[0] += menu(pages, f":hidden:\n:caption: {title}\n")
    if docname == "stability":
        source[0] = re.sub(r"(?m)^\| `(django_pgqueue[\w.]*)` \|", _linked, source[0])
        source[0] += menu([f"api/{module}" for module in PUBLIC], ":hidden:\n")


def _linked(found) -> str:
    return f"| [`{found[1]}`](api/{found[1]}.md) |"


def menu(pages, options) -> str:
    return f"\n```{{toctree}}\n{options}\n" + "\n".join(dict.fromkeys(pages)) + "\n```\n"


def add_fields(app, what, name, obj, options, lines) -> None:
    """The columns of a model, which have no docstrings."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, models.Model):
        lines += ["", "Columns:", ""]
        for field in obj._meta.concrete_fields:
            kind = type(field).__name__.removesuffix("Field")
            text = str(field.help_text).replace("*", "\\*")
            lines.append(f"* ``{field.name}`` ({kind}{', or None' if field.null else ''}) {text}")
        lines.append("")


def leave_out_signature(app, what, name, obj, options, signature, returns):
    """A model takes its columns, which are listed."""
    if what == "class" and isinstance(obj, type) and issubclass(obj, models.Model):
        return "", None
    return None


def setup(app) -> None:
    app.connect("autodoc-process-signature", leave_out_signature)
    app.connect("builder-inited", make_reference)
    app.connect("source-read", edit_page)
    app.connect("autodoc-process-docstring", add_fields)
