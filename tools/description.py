"""The description of the packages: README.md without its picture, which an index cannot show.

Hatchling calls it; see ``tool.hatch.metadata.hooks`` in ``pyproject.toml``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"!\[[^\]]*\]\((?!https:)[^)]+\)\n+", "", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
