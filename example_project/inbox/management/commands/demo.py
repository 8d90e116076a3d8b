"""``manage.py demo``: the whole inbox at work on this machine, from an empty directory.

Migrates the database, starts a web server and consumers, and posts signed webhooks over HTTP. Some
webhooks fail at first, some always fail, and one kills its consumer. When the queue is empty, the
demo redrives the dead letters to consumers without the faults, prints the counts, and keeps serving
the pages.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, CommandError, CommandParser, call_command

from django_pgqueue import queue
from django_pgqueue.models import Message
from example_project.inbox.demo import faults, payloads
from example_project.inbox.demo.children import Child, end
from example_project.inbox.demo.count import DEAD_LETTERS, Outcome, Run, Standing
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
            help='Send these JSON lines {"event": name, "payload": body}, plain or .gz, without '
            "planted faults (default: the ones that come with the project).",
        )
        parser.add_argument(
            "--count",
            type=_at_least(1),
            metavar="N",
            help="Number of deliveries to send. A repeated payload is a new delivery (default: "
            "every payload of FILE once, or the project's payloads four times).",
        )
        parser.add_argument("--consumers", type=_at_least(1), default=2, metavar="N")
        parser.add_argument(
            "--workers", type=_at_least(1), default=4, metavar="N", help="Workers per consumer."
        )
        parser.add_argument(
            "--port", type=int, default=0, help="The web server's port (default: a free one)."
        )
        parser.add_argument(
            "--once",
            action="store_true",
            help="Exit after printing the counts, instead of serving until Ctrl-C.",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="Print the counts as JSON, and everything else to stderr.",
        )

    def handle(self, *arguments: Any, **options: Any) -> None:
        self.say = self.stderr if options["json"] else self.stdout
        self.say.style_func = None
        # SIGTERM and SIGHUP end the demo like Ctrl-C. Under nohup, SIGHUP stays ignored.
        for interruption in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(interruption) != signal.SIG_IGN:
                signal.signal(interruption, signal.default_int_handler)
        self.children: list[Child] = []
        self.consumers: list[Child] = []
        self.started = 0
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
        is_shipped = options["payloads"] == payloads.SHIPPED
        total = options["count"] or (4 if is_shipped else 1) * len(bodies)
        planted = faults.plan(total) if is_shipped else {}
        self.say.write("Preparing the database and starting the web server ...")
        call_command("migrate", verbosity=0, interactive=False)

        port = options["port"] or _free_port()
        self.start_server(port)
        self.workers = options["workers"]
        for _ in range(options["consumers"]):
            self.start_consumer(bool(planted))
        self.say.write(
            f"Sending {total} webhooks to http://127.0.0.1:{port}/, "
            f"handled by {options['consumers']} consumers of {options['workers']} workers."
        )
        if planted:
            of = Counter(planted.values())
            self.say.write(
                f"Planted faults: {of[faults.RETRY]} webhooks fail at first, {of[faults.POISON]} "
                f"always, and {of[faults.KILL]} kills the consumer that handles it."
            )

        deliveries = faults.plant(payloads.repeat(bodies, total), planted)
        secret = settings.GITHUB_WEBHOOK_SECRET
        self.traffic = Traffic(port, secret, deliveries, faults=planted)
        run, progress = Run(self.traffic.faults), Progress(self.say, total)
        self.traffic.start()
        standing = self.drain(run, self.traffic, progress)
        self.traffic.stop()
        again = run.delivered_again()
        if planted and standing.dead:
            standing = self.redrive(run, self.traffic, progress)
        progress.finish(self.traffic.counts, standing)
        outcome = run.outcome(self.traffic.counts, again, progress.seconds)
        self.report(outcome, self.traffic.errors)
        if options["json"]:
            self.stdout.write(json.dumps(_as_dict(outcome), indent=2))
            self.stdout.flush()
        if not options["once"]:
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
        """Create the superuser, or give it a new password."""
        password = secrets.token_urlsafe(9)
        user, _ = get_user_model().objects.update_or_create(
            username=USERNAME, defaults={"is_staff": True, "is_superuser": True}
        )
        user.set_password(password)
        user.save()
        return password

    def start(self, name: str, *arguments: str, **environment: str) -> Child:
        child = Child(name, *arguments, log_directory=self.logs, **environment)
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

    def start_consumer(self, is_faulty: bool) -> None:
        self.started += 1
        name, workers = f"consumer-{self.started}", str(self.workers)
        arguments = ["runconsumer", "github", "--workers", workers]
        child = self.start(name, *arguments, DEMO_FAULTS=str(is_faulty))
        self.consumers.append(child)

    def check_children(self) -> None:
        for child in self.children:
            if child.exit_code is not None:
                raise CommandError(
                    f"{child.name} ended with exit code {child.exit_code}. The end of its log:\n"
                    f"{child.last_words()}"
                )

    def replace_killed(self, progress: Progress) -> None:
        """Start a new consumer for each one that a planted fault killed."""
        for child in list(self.consumers):
            if child.exit_code == -signal.SIGKILL:
                self.consumers.remove(child)
                self.children.remove(child)
                self.start_consumer(is_faulty=True)
                progress.note(
                    f"{child.name} was killed (kill -9) in the middle of a message; "
                    f"{self.consumers[-1].name} takes its place. The messages that it held are "
                    "delivered again when their leases run out, in a few seconds."
                )

    def drain(self, run: Run, traffic: Traffic, progress: Progress) -> Standing:
        """Wait until every message is archived or dead, or until progress stops."""
        before: tuple[int, Standing] | None = None
        moved_at = time.monotonic()
        while True:
            is_sent = traffic.is_done
            standing = run.standing()
            progress.show(traffic.counts, standing)
            if is_sent and standing.done >= traffic.counts["sent"]:
                return standing
            if traffic.faults:
                self.replace_killed(progress)
            self.check_children()
            if (now := (traffic.counts["sent"], standing)) != before:
                before, moved_at = now, time.monotonic()
            elif time.monotonic() - moved_at > STALLED_SECONDS:
                progress.note(f"No message was sent or handled for {STALLED_SECONDS} seconds.")
                return standing
            time.sleep(0.1)

    def redrive(self, run: Run, traffic: Traffic, progress: Progress) -> Standing:
        """Remove the fault, as a deployment would, and redrive the dead letters."""
        ids = run.dead_letters()
        letter = Message.objects.get(pk=ids[0])
        error = letter.headers["x-dead-letter"]["error"].partition("\n")[0]
        progress.note(f"{len(ids)} poison messages are in the queue {DEAD_LETTERS}: {error}")
        stopped, self.consumers = self.consumers, []
        self.children = [child for child in self.children if child not in stopped]
        end(stopped)
        for _ in stopped:
            self.start_consumer(is_faulty=False)
        run.redriven = queue(DEAD_LETTERS).redrive(ids=ids)
        progress.note(
            f"Consumers without the fault are deployed; dead letters redriven: {run.redriven}."
        )
        return self.drain(run, traffic, progress)

    def report(self, outcome: Outcome, errors: list[str]) -> None:
        write = self.say.write
        write("\nWhat happened")
        write(f"  {'event':<32} {'archived':>8} {'dead':>8} {'left':>8}")
        for event, places in outcome.events.items():
            numbers = " ".join(f"{number:>8}" for number in places.values())
            write(f"  {event:<32} {numbers}")
        write("\nMost active repositories")
        for name, number in outcome.repositories.items():
            write(f"  {name:<40} {number:>8}")
        write(
            f"\n{outcome.sent} sent = {outcome.archived} archived + {outcome.dead} dead letters "
            f"+ {outcome.left} left, {outcome.activities} activities: "
            f"{'nothing is lost' if outcome.adds_up else 'THE COUNT IS WRONG'}."
        )
        if outcome.retried or outcome.recovered or outcome.redriven:
            write(
                f"{outcome.retried} failed and were retried, {outcome.recovered} were delivered "
                f"again after a consumer was killed, {outcome.redriven} dead letters were redriven."
            )
        write(
            f"{outcome.redelivered} sent twice, {outcome.duplicates} refused as duplicates; "
            f"{outcome.seconds:.1f} s."
        )
        if outcome.refused:
            write(f"{outcome.refused} not accepted: {'; '.join(errors[:3])}")
        if outcome.dead:
            write(f"The admin shows the error of each message in the queue {DEAD_LETTERS}.")

    def stay(self, port: int) -> None:
        password = self.make_user()
        self.say.write(
            f"\nFeed   http://127.0.0.1:{port}/\n"
            f"Admin  http://127.0.0.1:{port}/admin/  as {USERNAME}, password {password}\n"
            f"Logs   {self.logs}\n\nCtrl-C ends everything."
        )
        self.say.flush()
        try:
            while True:
                self.check_children()
                time.sleep(1)
        except KeyboardInterrupt:
            self.say.write("\nEnding.")

    def clean_up(self) -> None:
        for interruption in (signal.SIGINT, signal.SIGTERM):
            signal.signal(interruption, signal.SIG_IGN)  # the demo is already ending
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
