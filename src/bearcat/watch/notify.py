"""Events of machines go out: to a command, to a webhook, by mail.

An event waits in the store until every sender has delivered it. So a process that is killed, or a mail server that is
down, loses nothing; an event may arrive twice, and has the same number then. A thread sends: measuring does not wait.
A sender that fails is tried again after 2, 4, 8 … seconds, and events that come meanwhile go out in one bundle.

>>> with Notifier("plant.db", [CommandSender("logger --tag bearcat")], note=print) as notifier:
...     notifier.wake()  # after something happened
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import shlex
import shutil
import signal
import smtplib
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from bearcat.errors import InputError, suggest
from bearcat.names import shown
from bearcat.report.typeset import PALETTE, WIDE, ReportFigure, count, empty_figure, house_style
from bearcat.storage import digest
from bearcat.watch.snapshot import MEASUREMENTS, Event
from bearcat.watch.status import written_time
from bearcat.watch.store import Store, TrendRow

BUNDLE = 100  # events in a bundle, at most
MOST = 1000  # events that are asked for at once
POLL = 5.0  # seconds until the store is asked again: another process may have acknowledged an alarm
FIRST_WAIT, LONGEST_WAIT = 2.0, 600.0  # seconds before a sender that failed is tried again
COMMAND_SECONDS, NETWORK_SECONDS = 60.0, 30.0
SUBJECT = 150  # characters of a mail's subject
WEBHOOK_SECRET, MAIL_PASSWORD = "BEARCAT_WEBHOOK_SECRET", "BEARCAT_MAIL_PASSWORD"  # variables of the environment
URGENT = ("alarm", "grown", "sensor", "problem")  # the first of these is the one that a mail shows
MAILED = (*URGENT, "over")  # nobody wants a mail of a baseline that was learnt

Note = Callable[[str], None]


class SendError(Exception):
    """A bundle was not delivered; the message says why, without secrets."""


@dataclass(frozen=True)
class Bundle:
    """Events that go out together, as plain values, oldest first."""

    events: tuple[dict[str, Any], ...]  # fields of `Event`, and `status`: what is known of the point now
    picture: Callable[[], bytes | None] = lambda: None  # a PNG of the trend that the most urgent event is about

    @property
    def sentence(self) -> str:
        """What happened, in a line."""
        first = next((event for event in self.events if event["kind"] in URGENT), self.events[0])
        text = str(first["sentence"])
        return printable(text if len(self.events) == 1 else f"{count(len(self.events), 'event')}; {text}")

    @property
    def content(self) -> bytes:
        """One JSON object."""
        return json.dumps({"sentence": self.sentence, "events": self.events}).encode()


class Sender(Protocol):
    """Delivers bundles, or raises SendError. `name` is for notes; `pause`: seconds from one bundle to the next."""

    name: str
    pause: float

    def send(self, bundle: Bundle) -> None: ...


def printable(text: str, most: int = 1000) -> str:
    """Text from users in one line without control characters, cut to so many."""
    return shown(text)[:most]


def bundle_of(store: Store, events: Sequence[Event]) -> Bundle:
    """Events, each with the status of its point."""
    statuses = {
        (row["machine"], row["point"]): row
        for machine in dict.fromkeys(event.machine for event in events)
        for row in store.fleet(machine).rows()
    }
    plain = tuple(
        asdict(event) | {
            "time": written_time(event.time), "acknowledged": written_time(event.acknowledged) or None,
            "status": statuses.get((event.machine, event.point)),
        }
        for event in events
    )  # fmt: skip
    first = next((event for event in events if event.kind in URGENT), events[0])
    return Bundle(plain, lambda: trend_picture(store, first))


class Notifier(AbstractContextManager["Notifier"]):
    """Sends what waits in the store, in a thread with a connection of its own."""

    def __init__(self, address: str, senders: Sequence[Sender], note: Note) -> None:
        self._address, self._note = address, note
        self._routes = [_Route(sender) for sender in senders]
        self._changed = threading.Condition()
        self._asked, self._answered = 0, 0  # how often it was woken, and how many of these found everything sent
        self._ending = self._hurry = False  # hurry: pauses between bundles are left out
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self.wake()
        self._thread.join(NETWORK_SECONDS)

    def wake(self) -> int:
        """Says that something happened."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def drain(self, seconds: float) -> bool:
        """Waits until everything is delivered, for so long at most; whether it is."""
        self._hurry = True
        asked = self.wake()
        with self._changed:
            return self._changed.wait_for(lambda: self._answered >= asked, seconds)

    def _run(self) -> None:
        failures = 0
        while not self._ending:
            try:
                with Store.open(self._address, write=True) as store:
                    while not self._ending:
                        asked = self._asked
                        wait = self._round(store, asked)
                        failures = 0
                        self._wait(asked, wait)
            except InputError as error:  # the database is away: what waits in it goes out later
                failures += 1
                self._note(f"notifications wait: {error}")
                self._wait(self._asked, _back_off(failures))

    def _wait(self, asked: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._asked > asked or self._ending, seconds)

    def _round(self, store: Store, asked: int) -> float:
        """Every sender gets what it has not delivered; seconds until the next round."""
        waiting = store.unsent(MOST + max(len(route.delivered) for route in self._routes))
        for route in self._routes:
            own = [event for event in waiting if event.number not in route.delivered][:BUNDLE]
            if own and (time.monotonic() >= route.next or (self._hurry and not route.failures)):
                self._send(route, store, own)
        done = set.intersection(*(route.delivered for route in self._routes))
        if done:
            store.mark_sent(sorted(done))
            for route in self._routes:
                route.delivered -= done
        if len(done) < len(waiting) or len(waiting) >= MOST:
            behind = [route for route in self._routes if len(route.delivered) < len(waiting) - len(done)]
            if any(self._hurry and not route.failures for route in behind):
                return 0.0
            return min(max(min((route.next for route in behind), default=0.0) - time.monotonic(), 0.0), POLL)
        with self._changed:
            self._answered = asked
            self._changed.notify_all()
        return POLL

    def _send(self, route: _Route, store: Store, events: Sequence[Event]) -> None:
        try:
            route.sender.send(bundle_of(store, events))
        except Exception as error:  # whatever it is: this thread goes on, and the others' events do
            route.failures += 1
            wait = _back_off(route.failures)
            reason = str(error) if isinstance(error, SendError) else repr(error)
            sentence = f"{route.sender.name}: {count(len(events), 'event')} could not be sent ({reason})"
            self._note(printable(f"{sentence}; the next attempt is in {wait:.0f} s"))
        else:
            route.failures, wait = 0, route.sender.pause
            route.delivered |= {event.number for event in events if event.number is not None}
        route.next = time.monotonic() + wait


@dataclass
class _Route:
    """A sender, what it has delivered that others have not, and when it is called again."""

    sender: Sender
    delivered: set[int] = field(default_factory=set)
    failures: int = 0
    next: float = 0.0


def _back_off(failures: int) -> float:
    return float(min(FIRST_WAIT * 2 ** min(failures - 1, 20), LONGEST_WAIT))


class CommandSender:
    """Runs a command with the bundle on its standard input; status 0 says that it was delivered."""

    pause = 0.0

    def __init__(self, command: str, seconds: float = COMMAND_SECONDS) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise InputError(f"--notify: '{printable(command, 100)}' cannot be split into words ({error})") from error
        if not self._words or shutil.which(self._words[0]) is None:
            raise InputError(f"--notify: there is no program '{printable(' '.join(self._words[:1]), 100)}'")
        self.name, self._seconds = printable(f"command {self._words[0]}", 100), seconds

    def send(self, bundle: Bundle) -> None:
        try:
            process = subprocess.Popen(  # noqa: S603 (the user's own command, without a shell)
                self._words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise SendError(error.strerror or "it cannot be run") from error
        try:
            process.communicate(bundle.content, timeout=self._seconds)
        except subprocess.TimeoutExpired as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            process.wait()
            raise SendError(f"it did not end within {self._seconds:g} s") from error
        if process.returncode:
            raise SendError(f"it ended with status {process.returncode}")


class _NoRedirects(HTTPRedirectHandler):
    """A redirected POST would become a GET, perhaps to elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class WebhookSender:
    """Posts the bundle; a secret signs it in the header X-Bearcat-Signature: sha256=HMAC of the body."""

    pause = 1.0

    def __init__(self, address: str, secret: str | None = None) -> None:
        parts = address_of("--webhook", address, ("https", "http"))
        if parts.username or parts.password:
            raise InputError(
                "--webhook: a user or password in the address is not sent; use one with a token in its path"
            )
        self.name = f"webhook {parts.scheme}://{parts.hostname}"  # its path may be a secret
        self._address, self._secret = address, secret

    def send(self, bundle: Bundle) -> None:
        body, headers = bundle.content, {"Content-Type": "application/json", "User-Agent": "bearcat"}
        if self._secret:
            headers["X-Bearcat-Signature"] = (
                f"sha256={hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()}"
            )
        request = Request(self._address, body, headers, method="POST")  # noqa: S310 (http or https)
        try:
            build_opener(_NoRedirects).open(request, timeout=NETWORK_SECONDS).close()
        except HTTPError as error:
            error.close()
            raise SendError(f"the server answered {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise SendError(str(error.reason if isinstance(error, URLError) else error)) from error


class MailSender:
    """Mails the bundle as sentences, with a picture of the trend; smtp with STARTTLS, or smtps."""

    pause = 60.0

    def __init__(self, address: str, password: str | None = None) -> None:
        parts = address_of("--mail", address, ("smtp", "smtps"))
        fields = parse_qs(parts.query)
        if unknown := set(fields) - {"from", "to", "tls"}:
            name = min(unknown)
            raise InputError(f"--mail: unknown field '{printable(name, 40)}'{suggest(name, ('from', 'to', 'tls'))}")
        self._sender, self._receivers = fields.get("from", []), fields.get("to", [])
        people = [*self._sender, *self._receivers]
        if len(self._sender) != 1 or not self._receivers or not all(map(_is_mail_address, people)):
            raise InputError("--mail: give addresses as in smtp://host:587?from=plant@example.com&to=me@example.com")
        if parts.password:
            raise InputError(f"--mail: other users see the command line; put the password into {MAIL_PASSWORD}")
        self._user = None if parts.username is None else unquote(parts.username)
        if self._user is not None and not password:
            raise InputError(f"--mail: the password of '{printable(self._user, 60)}' is missing; set {MAIL_PASSWORD}")
        self._password, self._tls = password or "", fields.get("tls") != ["no"]
        if self._user is not None and not self._tls:
            raise InputError("--mail: a password is never sent without encryption; leave out the user or tls=no")
        self._direct = parts.scheme == "smtps"
        self._host, self._port = str(parts.hostname), parts.port or (465 if self._direct else 25)
        self.name = f"mail server {self._host}"

    def send(self, bundle: Bundle) -> None:
        events = tuple(event for event in bundle.events if event["kind"] in MAILED)
        if not events:
            return
        message = self._message(replace(bundle, events=events))
        try:
            with self._connected() as server:
                server.send_message(message)
        except smtplib.SMTPException as error:
            code = getattr(error, "smtp_code", None)
            raise SendError(f"the server answered {code}" if code else type(error).__name__) from error
        except ssl.SSLCertVerificationError as error:
            raise SendError(f"its certificate is not trusted ({error.verify_message})") from error
        except OSError as error:
            raise SendError(str(error)) from error

    def _connected(self) -> smtplib.SMTP:
        context = ssl.create_default_context()
        if self._direct:
            server: smtplib.SMTP = smtplib.SMTP_SSL(self._host, self._port, timeout=NETWORK_SECONDS, context=context)
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=NETWORK_SECONDS)
        try:
            server.ehlo()
            if not self._direct and self._tls and server.has_extn("starttls"):
                server.starttls(context=context)
                server.ehlo()
            elif not self._direct and self._user is not None:
                raise SendError("the server offers no encryption, so the password is not sent")
            if self._user is not None:
                server.login(self._user, self._password)
        except BaseException:
            server.close()
            raise
        return server

    def _message(self, bundle: Bundle) -> EmailMessage:
        lines = [f"{event['time']}  {event['sentence']}" for event in bundle.events]
        message = EmailMessage(policy=SMTP)
        message["From"], message["To"] = self._sender[0], ", ".join(self._receivers)
        message["Subject"] = printable(f"bearcat: {bundle.sentence}", SUBJECT)
        message["Date"] = formatdate()
        key = digest(repr([(event["number"], event["time"]) for event in bundle.events]).encode())
        message["Message-ID"] = f"<{key[:32]}@{self._sender[0].rpartition('@')[2]}>"  # the same if it is sent twice
        message.set_content("\n".join(map(printable, lines)) + "\n")
        if picture := bundle.picture():
            message.add_attachment(picture, maintype="image", subtype="png", filename="trend.png")
        return message


def address_of(option: str, address: str, schemes: Sequence[str]) -> Any:
    """The parts of an address with one of these schemes and a host; InputError, without the address, otherwise."""
    wrong = f"{option}: must be an address such as {schemes[0]}://host"
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise InputError(wrong) from error
    plain = address.isascii() and address.isprintable() and " " not in address
    if not (plain and parts.scheme in schemes and parts.hostname):
        raise InputError(wrong)
    return parts


def _is_mail_address(text: str) -> bool:
    name, at, host = text.rpartition("@")
    return bool(name and at and host) and not set(text) & set(' ,;:<>()"[]\\') and text.isascii() and text.isprintable()


def trend_picture(store: Store, event: Event) -> bytes | None:
    """A PNG of the measurement that left its usual band furthest; None where nothing is known, or nothing can draw."""
    try:
        rows = store.trend(event.machine, event.point, most=500)
        return _draw_trend(rows, event).render("png") if rows else None
    except Exception:  # a point that is forgotten, no matplotlib, …: the sentence matters more than its picture
        return None


def _outside(row: TrendRow, name: str) -> float:
    """How far a value is from the middle of its usual band, in widths of the band."""
    low, high = row.band[name]
    return abs(row.values.get(name, low) - (low + high) / 2) / max(high - low, 1e-12)


@house_style()
def _draw_trend(rows: Sequence[TrendRow], event: Event) -> ReportFigure:
    then = max((row for row in rows if row.time <= event.time), key=lambda row: row.time, default=rows[-1])
    banded = [name for name in then.band if name in then.values]
    name = max(banded, key=lambda each: _outside(then, each)) if banded else "rms"
    title, unit = MEASUREMENTS.get(name, (name, ""))
    drawing = empty_figure(WIDE, 2.9)
    axis = drawing.subplots()
    measured = [row for row in rows if name in row.values]
    days, values = [_day(row.time) for row in measured], [row.values[name] for row in measured]
    axis.plot(days, values, color=PALETTE[0], linewidth=0.9, label="measured")
    if usual := [row for row in measured if name in row.band]:
        low, high = zip(*(row.band[name] for row in usual), strict=True)
        days = [_day(row.time) for row in usual]
        axis.fill_between(days, low, high, color=PALETTE[2], alpha=0.25, linewidth=0, label="usual")
    axis.axvline(_day(event.time), color=PALETTE[1], linewidth=0.9, label=event.kind)
    axis.legend(loc="upper left")
    axis.set_ylabel(f"{title}, {unit}" if unit else title)
    axis.set_title(printable(f"{event.machine}, {event.point}", 80))
    axis.tick_params(axis="x", rotation=20)
    return ReportFigure("trend", event.point, event.sentence, drawing)


def _day(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
