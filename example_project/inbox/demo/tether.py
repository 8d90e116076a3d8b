"""Runs a management command that ends with its parent, however the parent ended.

``python -m example_project.inbox.demo.tether runconsumer`` is ``manage.py runconsumer``, tied to
its standard input: a pipe held open by the parent. The pipe closes when the parent closes it, exits
or is killed; the command then gets SIGTERM, which asks it to finish.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

SECONDS_TO_FINISH = 20


def end_when_stdin_closes() -> None:
    # os.read, not sys.stdin: a buffered reader's lock would block the interpreter's shutdown.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_FINISH)
    os._exit(1)


if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    threading.Thread(target=end_when_stdin_closes, daemon=True).start()
    execute_from_command_line(["manage.py", *sys.argv[1:]])
