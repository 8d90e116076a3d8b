"""The latest ticks of a schedule, drawn as a sparkline and told in words."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.engine.wording import age
from django_pgqueue.models import Schedule
from django_pgqueue.queues.ticks import KEPT, Outcome, Tick
from django_pgqueue.templatetags.pgqueue_admin import moment, number

#: The size of a sparkline, and the lowest height of a bar.
WIDTH, HEIGHT, LOWEST = 120, 24, 7
#: The width of a bar, with the gap behind it.
STEP = WIDTH // KEPT
#: A tick that was sent with more seconds than this after its time is late. A day late is as high as
#: a bar gets.
LATE, HIGHEST = 60, 86_400

_WORDS = {
    Outcome.SENT: gettext_lazy("sent"),
    Outcome.HELD: gettext_lazy("not sent: a message held the unique key"),
    Outcome.MISSED: gettext_lazy("missed, not sent"),
    Outcome.FAILED: gettext_lazy("refused"),
}
#: The parts of a summary, by the look of a bar.
_COUNTS = {
    "sent": gettext_lazy("%s sent"),
    "late": gettext_lazy("%s late"),
    "held": gettext_lazy("%s not sent for their key"),
    "missed": gettext_lazy("%s missed"),
    "failed": gettext_lazy("%s refused"),
}


class Bar(NamedTuple):
    """A tick with its bar in a sparkline. The later it was sent, the higher is the bar."""

    tick: Tick
    look: str
    words: str
    x: float
    y: float
    width: float
    height: float

    @property
    def title(self) -> str:
        return f"{moment(self.tick.at)}: {self.words}"


class Sparkline:
    """The latest ticks of a schedule, the oldest on the left."""

    width, height = WIDTH, HEIGHT

    def __init__(self, schedule: Schedule) -> None:
        self.bars = [_bar(tick, place) for place, tick in enumerate(schedule.latest_ticks)]

    @property
    def rows(self) -> list[Bar]:
        """The bars, the newest first."""
        return self.bars[::-1]

    @property
    def has_missed(self) -> bool:
        return any(bar.tick.is_missed for bar in self.bars)

    @property
    def summary(self) -> str:
        """How many ticks were sent, late, missed and so on."""
        counts = Counter(bar.look for bar in self.bars)
        return ", ".join(
            str(words) % number(counts[look]) for look, words in _COUNTS.items() if counts[look]
        )


def _bar(tick: Tick, place: int) -> Bar:
    look, height = tick.outcome.value, float(HEIGHT - 2)
    words = str(_WORDS[tick.outcome])
    if tick.outcome is Outcome.HELD:
        height = LOWEST
    elif tick.outcome is Outcome.SENT:
        share = min(1.0, math.log1p(tick.late) / math.log1p(HIGHEST))
        height = round(LOWEST + share * (height - LOWEST), 1)
        if tick.late > LATE:
            look = "late"
        if tick.late:
            words = _("sent %s late") % age(tick.late)
    x, width = place * STEP, STEP - 1
    if look in ("held", "missed"):  # an outline, inside the space of a filled bar
        return Bar(tick, look, words, x + 0.5, HEIGHT - height - 0.5, width - 1, height - 1)
    return Bar(tick, look, words, x, HEIGHT - 1 - height, width, height)
