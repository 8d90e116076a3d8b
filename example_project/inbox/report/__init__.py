"""The webhook history as a report: from the queue's archive to a lake, and from there to a page.

``history.py`` asks the lake, by Spark; ``plots.py`` draws; ``manage.py report`` puts it together.
"""

from __future__ import annotations
