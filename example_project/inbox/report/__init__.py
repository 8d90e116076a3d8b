"""The webhook history as a report: from the queue's archive to a lake, and from there to a page.

``history.py`` queries the lake with Spark, ``plots.py`` draws, ``manage.py report`` shows both.
"""

from __future__ import annotations
