"""The packages' description: README.md without its picture, which a package index cannot show.

Called by Hatchling; see ``tool.hatch.metadata.hooks`` in ``pyproject.toml``.
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
