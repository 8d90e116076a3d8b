"""Recreates the queues of a run, in a database that it migrates if needed.

python -m tests.acceptance.chaos.prepare '{"lease": {"visibility_timeout": 2}, ...}'
"""

from __future__ import annotations

import json
import os
import sys


def main(queues_text: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.working.settings")
    import django

    django.setup()
    from django.core.management import call_command

    from django_pgqueue.models import Message, Process, Queue
    from tests.app.models import Order

    call_command("migrate", run_syncdb=True, verbosity=0)
    Queue.objects.update(dead_letter_queue=None)
    Queue.objects.all().delete()
    Process.every.all().delete()
    Order.objects.all().delete()
    for name, options in json.loads(queues_text).items():
        notify = options.pop("notify", True)
        limits = options.pop("limits", {})
        Message.objects.create_queue(name, **options)
        Queue.objects.filter(name=name).update(notify=notify, **limits)


if __name__ == "__main__":
    main(*sys.argv[1:])
