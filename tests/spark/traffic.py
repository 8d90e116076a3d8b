"""Writers with difficult transactions: they commit late, roll back, and use savepoints."""

from __future__ import annotations

import random
import threading
import time

from django.db import connection, transaction

from django_pgqueue.models import Message

__all__ = ["Traffic"]


class Traffic:
    """Threads that send and archive, each on its own connection, until stopped."""

    def __init__(self, queue: str, writers: int = 8) -> None:
        self.queue = queue
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(writers)
        ]

    def __enter__(self) -> Traffic:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
        assert not self.errors, self.errors

    def _work(self, number: int) -> None:
        dice = random.Random(number)
        try:
            while not self.stopping.is_set():
                with transaction.atomic():
                    self._transact(dice)
                time.sleep(dice.uniform(0, 0.02))
        except BaseException as error:
            self.errors.append(error)
        finally:
            connection.close()

    def _transact(self, dice: random.Random) -> None:
        for _ in range(dice.randint(1, 3)):
            if dice.random() < 0.3:
                with transaction.atomic():
                    self._send_and_archive(dice.randint(1, 8))
                    transaction.set_rollback(dice.random() < 0.5)
            else:
                self._send_and_archive(dice.randint(1, 8))
        if dice.random() < 0.1:
            # A late commit: other transactions start and end meanwhile.
            time.sleep(dice.uniform(0.2, 1.0))
        transaction.set_rollback(dice.random() < 0.15)

    def _send_and_archive(self, count: int) -> None:
        Message.objects.send_batch(self.queue, [{"n": n} for n in range(count)])
        messages = Message.objects.read(self.queue, qty=count, in_transaction=True)
        if messages:
            Message.objects.archive(self.queue, messages)
