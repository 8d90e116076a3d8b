"""``manage.py demo``: the whole inbox at work on this machine, from an empty directory.

Migrates the database, starts a web server and consumers, posts signed webhooks over HTTP, waits
until the queue is drained and counts whether every delivery arrived, once.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
import signal
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, CommandError, CommandParser, call_command

from example_project.inbox.demo import payloads
from example_project.inbox.demo.children import Child, end
from example_project.inbox.demo.count import Outcome, Run, Standing
from example_project.inbox.demo.progress import Progress
from example_project.inbox.demo.traffic import Traffic

USERNAME = "demo"
SERVER_START_SECONDS = 60
STALLED_SECONDS = 60


class Command(BaseCommand):
    help = "Show the inbox at work: web server, consumers and webhooks, all on this machine."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--payloads",
            type=Path,
            default=payloads.SHIPPED,
            metavar="FILE",
            help='JSON lines {"event": name, "payload": body} to send, plain or .gz '
            "(default: the ones that come with the project).",
        )
        parser.add_argument(
            "--count",
            type=_at_least(1),
            metavar="N",
            help="Deliveries to send; payloads repeat, each time as a new delivery "
            "(default: a file of yours once, the ones of the project four times).",
        )
        parser.add_argument("--consumers", type=_at_least(1), default=2, metavar="N")
        parser.add_argument(
            "--workers", type=_at_least(1), default=4, metavar="N", help="Workers a consumer."
        )
        parser.add_argument(
            "--port", type=int, default=0, help="The web server's port (default: a free one)."
        )
        parser.add_argument(
            "--exit",
            action="store_true",
            help="End when the queue is drained; so it does without a terminal, too.",
        )
        parser.add_argument(
            "--json", action="store_true", help="Print the outcome as JSON, the rest to stderr."
        )

    def handle(self, *arguments: Any, **options: Any) -> None:
        self.say = self.stderr if options["json"] else self.stdout
        self.say.style_func = None
        # kill and a closed terminal end the demo just as Ctrl-C does; under nohup it stays.
        for interruption in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(interruption) != signal.SIG_IGN:
                signal.signal(interruption, signal.default_int_handler)
        self.children: list[Child] = []
        self.traffic: Traffic | None = None
        self.logs = Path(tempfile.mkdtemp(prefix="inbox-demo-"))
        try:
            outcome = self.play(options)
        except KeyboardInterrupt:
            self.say.write("\nInterrupted.")
            raise SystemExit(130) from None
        finally:
            self.clean_up()
        if not outcome.is_clean:
            raise SystemExit(1)

    def play(self, options: dict[str, Any]) -> Outcome:
        bodies = self.load(options["payloads"])
        rounds = 4 if options["payloads"] == payloads.SHIPPED else 1
        total = options["count"] or rounds * len(bodies)
        stays = self.stdout.isatty() and not options["exit"]
        call_command("migrate", verbosity=0, interactive=False)

        port = options["port"] or _free_port()
        self.start_server(port)
        self.start_consumers(options["consumers"], options["workers"])
        self.say.write(
            f"Sending {total} webhooks to http://127.0.0.1:{port}/, "
            f"handled by {options['consumers']} consumers of {options['workers']} workers."
        )

        self.traffic = Traffic(port, settings.GITHUB_WEBHOOK_SECRET, payloads.repeat(bodies, total))
        outcome = self.drain(Run(), self.traffic, total)
        self.report(outcome, self.traffic.errors)
        if options["json"]:
            self.stdout.write(json.dumps(_as_dict(outcome), indent=2))
        if stays:
            self.stay(port)
        return outcome

    def load(self, path: Path) -> list[tuple[str, bytes]]:
        try:
            bodies = payloads.load(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(f"Cannot read payloads from {path}: {error!r}") from error
        if not bodies:
            raise CommandError(f"There are no payloads in {path}.")
        return bodies

    def make_user(self) -> str:
        """A superuser to look around with; its password is a new one in every run."""
        password = secrets.token_urlsafe(9)
        user, _ = get_user_model().objects.update_or_create(
            username=USERNAME, defaults={"is_staff": True, "is_superuser": True}
        )
        user.set_password(password)
        user.save()
        return password

    def start(self, name: str, *arguments: str) -> Child:
        child = Child(name, *arguments, log_directory=self.logs)
        self.children.append(child)
        child.start()
        return child

    def start_server(self, port: int) -> None:
        self.start("server", "runserver", f"127.0.0.1:{port}", "--noreload")
        deadline = time.monotonic() + SERVER_START_SECONDS
        while not _answers(port):
            self.check_children()
            if time.monotonic() > deadline:
                raise CommandError(f"The web server does not answer; its log is in {self.logs}.")
            time.sleep(0.1)

    def start_consumers(self, consumers: int, workers: int) -> None:
        for number in range(1, consumers + 1):
            self.start(f"consumer-{number}", "runconsumer", "github", "--workers", str(workers))

    def check_children(self) -> None:
        for child in self.children:
            if child.exit_code is not None:
                raise CommandError(
                    f"{child.name} ended with exit code {child.exit_code}. Its last words:\n"
                    f"{child.last_words()}"
                )

    def drain(self, run: Run, traffic: Traffic, total: int) -> Outcome:
        """Send everything and wait until all of it is done, or nothing moves any more."""
        progress = Progress(self.say, total)
        traffic.start()
        before: tuple[int, Standing] | None = None
        moved_at = time.monotonic()
        while True:
            is_sent = traffic.is_done
            standing = run.standing()
            if is_sent and standing.done >= traffic.counts["sent"]:
                break
            self.check_children()
            progress.show(traffic.counts, standing)
            if (now := (traffic.counts["sent"], standing)) != before:
                before, moved_at = now, time.monotonic()
            elif time.monotonic() - moved_at > STALLED_SECONDS:
                self.say.write(f"\nNothing has moved for {STALLED_SECONDS} seconds.")
                break
            time.sleep(0.2)
        traffic.stop()
        progress.finish(traffic.counts, standing)
        return run.outcome(traffic.counts, progress.seconds)

    def report(self, outcome: Outcome, errors: list[str]) -> None:
        write = self.say.write
        write("\nWhat happened")
        write(f"  {'event':<32} {'archived':>8} {'failed':>8} {'left':>8}")
        for event, places in outcome.events.items():
            numbers = " ".join(f"{number:>8}" for number in places.values())
            write(f"  {event:<32} {numbers}")
        write("\nMost active repositories")
        for name, number in outcome.repositories.items():
            write(f"  {name:<40} {number:>8}")
        write(
            f"\n{outcome.sent} sent = {outcome.archived} archived + {outcome.failed} failed "
            f"+ {outcome.left} left, {outcome.activities} activities: "
            f"{'it adds up' if outcome.adds_up else 'IT DOES NOT ADD UP'}."
        )
        write(
            f"{outcome.redelivered} sent again, {outcome.duplicates} refused as duplicates; "
            f"{outcome.seconds:.1f} s, {outcome.rate:.0f} a second."
        )
        if outcome.refused:
            write(f"{outcome.refused} not accepted: {'; '.join(errors[:3])}")
        if outcome.failed:
            write("Why they failed: the admin's archived messages show each error.")

    def stay(self, port: int) -> None:
        password = self.make_user()
        self.say.write(
            f"\nFeed   http://127.0.0.1:{port}/\n"
            f"Admin  http://127.0.0.1:{port}/admin/  as {USERNAME}, password {password}\n"
            f"Logs   {self.logs}\n\nCtrl-C ends it all."
        )
        try:
            while True:
                self.check_children()
                time.sleep(1)
        except KeyboardInterrupt:
            self.say.write("\nEnding.")

    def clean_up(self) -> None:
        if self.traffic:
            self.traffic.stop()
        end(self.children)
        shutil.rmtree(self.logs, ignore_errors=True)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise ValueError
        return int(text)

    number.__name__ = f"number of at least {least}"
    return number


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        raise CommandError(f"The web server answers with an error: {error}") from error
    except OSError:
        return False


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    return {
        **dataclasses.asdict(outcome),
        "rate": round(outcome.rate, 1),
        "adds_up": outcome.adds_up,
    }
