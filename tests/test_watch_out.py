"""Events of watched machines go out: to a real command, a real web server, a real mail server."""

from __future__ import annotations

import base64
import configparser
import email
import email.policy
import hashlib
import hmac
import json
import os
import shlex
import shutil
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from bearcat.diagnosis.recording import STATUS
from bearcat.errors import InputError
from bearcat.trust.decision import ALARM, CHECK
from bearcat.watch import notify
from bearcat.watch.incoming import receive
from bearcat.watch.memory import PointMemory
from bearcat.watch.notify import CommandSender, MailSender, Notifier, WebhookSender, address_of
from bearcat.watch.out import WatchMetrics
from bearcat.watch.snapshot import Assessment, Event
from bearcat.watch.store import RecordingFile, Store
from bearcat.watch.usual import WatchRule

EXAMPLES = Path(__file__).parents[1] / "examples" / "watch"
HOSTILE = "pump\r\nBcc: thief@example.com\x1b[31m<b>$x$"


def happen(store: Store, *kinds: str, machine: str = "pump 3") -> list[int]:
    """Events as the loop adds them: their numbers."""
    events = [
        Event(machine, "drive end", 1.7e9 + n, kind, f"{machine}, drive end: {kind} number {n}")
        for n, kind in enumerate(kinds)
    ]
    name = f"{time.monotonic_ns()}"
    return [int(event.number) for event in store.add(RecordingFile(name, "", name, 1, 1), events=events)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "plant.db", create=True) as opened:
        yield opened


class Collecting:
    """A sender that keeps what it is given, after failing so many times."""

    name, pause = "test", 0.0

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.bundles = failures, list[list[int]]()

    def send(self, bundle: notify.Bundle) -> None:
        if self.failures:
            self.failures -= 1
            raise notify.SendError("not yet")
        self.bundles.append([event["number"] for event in bundle.events])

    @property
    def numbers(self) -> list[int]:
        return [number for bundle in self.bundles for number in bundle]


def deliver(store: Store, *senders: notify.Sender, seconds: float = 20) -> tuple[bool, list[str]]:
    notes: list[str] = []
    with Notifier(store.name, senders, notes.append) as notifier:
        return notifier.drain(seconds), notes


def test_events_wait_in_the_store_until_every_sender_has_them(store, monkeypatch):
    monkeypatch.setattr(notify, "FIRST_WAIT", 0.05)
    numbers = happen(store, "alarm", "grown")
    good, broken = Collecting(), Collecting(failures=10**9)
    done, notes = deliver(store, good, broken, seconds=0.5)
    assert not done
    assert any("not yet" in note for note in notes)
    assert good.numbers == numbers, "what one sender has delivered is not sent again because another fails"
    assert [event.number for event in store.unsent()] == numbers, "a process that ends here has lost nothing"
    late, repaired = Collecting(), Collecting(failures=2)
    assert deliver(store, late, repaired)[0]
    assert late.numbers == repaired.numbers == numbers
    assert store.unsent() == []
    again = Collecting()
    assert deliver(store, again)[0]
    assert again.numbers == []


def test_a_flood_goes_out_in_bundles_and_what_comes_later_too(store):
    numbers = happen(store, *["problem"] * (2 * notify.BUNDLE + 1))
    sender = Collecting()
    with Notifier(store.name, [sender], print) as notifier:
        assert notifier.drain(20)
        assert [len(bundle) for bundle in sender.bundles] == [notify.BUNDLE, notify.BUNDLE, 1]
        numbers += happen(store, "over")
        notifier.wake()
        assert notifier.drain(20)
    assert sender.numbers == numbers


def test_sending_does_not_stop_measuring(store):
    """While a sender hangs, the store is free."""
    going = threading.Event()

    class Hanging(Collecting):
        def send(self, bundle):
            assert going.wait(20)
            super().send(bundle)

    sender = Hanging()
    happen(store, "alarm")
    with Notifier(store.name, [sender], print) as notifier:
        notifier.wake()
        happen(store, "over")
        going.set()
        assert notifier.drain(20)
    assert len(sender.numbers) == 2


def script(folder: Path, text: str) -> str:
    file = folder / "receive me.py"
    file.write_text(text)
    return f"{sys.executable} '{file}'"


RECEIVE = """
import json, pathlib, sys
place = pathlib.Path(__file__).parent / "received"
found = json.load(sys.stdin)
if not place.exists():
    place.write_text("")
    sys.exit(3)
with place.open("a") as file:
    print(json.dumps(found), file=file)
"""


def test_a_command_gets_one_object_of_json_and_its_failure_is_noted_and_tried_again(store, tmp_path, monkeypatch):
    monkeypatch.setattr(notify, "FIRST_WAIT", 0.05)
    numbers = happen(store, "alarm", machine=HOSTILE)
    done, notes = deliver(store, CommandSender(script(tmp_path, RECEIVE)))
    assert done
    assert any("status 3" in note for note in notes)
    (line,) = (tmp_path / "received").read_text().splitlines()
    (event,) = json.loads(line)["events"]
    assert event["number"] == numbers[0]
    assert (event["machine"], event["kind"], event["time"]) == (HOSTILE, "alarm", "2023-11-14T22:13:20Z")


def test_a_command_that_hangs_is_ended_with_its_children(store, tmp_path):
    slow = script(tmp_path, "import subprocess, sys, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)\n")
    began = time.monotonic()
    with pytest.raises(notify.SendError, match="did not end"):
        CommandSender(slow, seconds=0.3).send(notify.bundle_of(store, [Event("a", "b", 0.0, "alarm", "c", 1)]))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("command", ["", "'", "no-such-program-here --x"])
def test_a_command_that_cannot_be_run_is_refused_at_once(command):
    with pytest.raises(InputError, match="--notify"):
        CommandSender(command)


@contextmanager
def web_server(status: int = 200, location: str = "") -> Iterator[tuple[str, list[tuple[Any, bytes]]]]:
    received: list[tuple[Any, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            received.append((self.headers, self.rfile.read(int(self.headers["Content-Length"] or 0))))
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook/secret-token", received
        server.shutdown()
        thread.join()


def test_a_webhook_gets_the_same_json_signed(store):
    numbers = happen(store, "alarm", "over")
    with web_server() as (address, received):
        assert deliver(store, WebhookSender(address, secret="shared"))[0]
    ((headers, body),) = received
    assert [event["number"] for event in json.loads(body)["events"]] == numbers
    expected = hmac.new(b"shared", body, hashlib.sha256).hexdigest()
    assert headers["X-Bearcat-Signature"] == f"sha256={expected}"


@pytest.mark.parametrize(("status", "location"), [(500, ""), (302, "/elsewhere"), (307, "file:///etc/passwd")])
def test_a_webhook_that_fails_or_redirects_is_not_delivered_and_keeps_its_secret(store, status, location):
    happen(store, "alarm")
    with web_server(status, location) as (address, received):
        done, notes = deliver(store, WebhookSender(address), seconds=0.5)
    assert not done
    assert len(received) == 1, "the redirect was not followed"
    assert str(status) in notes[0]
    assert "secret-token" not in "".join(notes)
    assert len(store.unsent()) == 1


@pytest.mark.parametrize(
    "address", ["ftp://host/x", "http:///x", "https://user:pass@host/", "http://a b/", "x", "http://h:x/"]
)
def test_wrong_addresses_of_webhooks_are_refused_without_being_repeated(address):
    with pytest.raises(InputError, match="--webhook") as refusal:
        WebhookSender(address)
    assert "pass@" not in str(refusal.value)


class Mailbox(socketserver.StreamRequestHandler):
    """A mail server of a few words."""

    def handle(self) -> None:
        server: Any = self.server
        self.say("220 here")
        while line := self.rfile.readline().decode().strip():
            word = line.split()[0].upper()
            server.lines.append(line)
            if word == "EHLO":
                secure = server.context is not None and not hasattr(self.connection, "cipher")
                self.say(*(["250-here", "250 STARTTLS"] if secure else ["250-here", "250 AUTH PLAIN"]))
            elif word == "STARTTLS":
                self.say("220 go on")
                try:
                    self.connection = server.context.wrap_socket(self.connection, server_side=True)
                except OSError:  # the other side does not trust this one
                    return
                self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
            elif word == "DATA":
                self.say("354 go on")
                content = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    content += part.removeprefix(b".")
                server.mails.append(content)
                self.say("250 kept")
            elif word == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("235 known" if word == "AUTH" else "250 fine")

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())


@pytest.fixture
def mail_server() -> Iterator[Callable[..., Any]]:
    started = []

    def start(context: Any = None) -> Any:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox)
        server.daemon_threads, server.context, server.lines, server.mails = True, context, [], []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def mail_address(server: Any, user: str = "", more: str = "") -> str:
    port = server.server_address[1]
    return f"smtp://{user}127.0.0.1:{port}?from=plant@example.com&to=me@example.com&to=you@example.com{more}"


def test_a_mail_says_what_happened_and_names_cannot_add_headers(store, mail_server):
    server = mail_server()
    happen(store, "over", "alarm", machine=HOSTILE)
    assert deliver(store, MailSender(mail_address(server)))[0]
    (content,) = server.mails
    message = email.message_from_bytes(content, policy=email.policy.default)
    assert message["To"] == "me@example.com, you@example.com"
    assert message["Bcc"] is None
    assert "\x1b" not in message["Subject"]
    assert "alarm number 1" in message["Subject"], "the most urgent comes first"
    text = message.get_body().get_content()
    assert text.count("\n") == 2
    assert "over number 0" in text
    assert [line for line in server.lines if line.upper().startswith("RCPT")] == [
        "rcpt TO:<me@example.com>",
        "rcpt TO:<you@example.com>",
    ]


def test_a_password_is_sent_encrypted_or_not_at_all(store, mail_server, tmp_path, monkeypatch):
    import ssl

    happen(store, "alarm")
    plain = mail_server()
    done, notes = deliver(store, MailSender(mail_address(plain, "plant@"), "hidden"), seconds=0.5)
    assert not done
    assert not any("AUTH" in line for line in plain.lines)
    assert "hidden" not in "".join(notes)
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        key,
    ]
    try:
        subprocess.run([*made, "-out", certificate, *subject], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl on this machine to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = mail_server(context)
    sender = MailSender(mail_address(server, "plant@"), "hidden")
    done, notes = deliver(store, sender, seconds=0.5)
    assert not done, "nobody vouches for this certificate"
    assert "certificate" in notes[0]
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert deliver(store, sender)[0]
    (login,) = (line for line in server.lines if line.startswith("AUTH"))
    assert base64.b64decode(login.split()[-1]) == b"\0plant\0hidden"
    assert len(server.mails) == 1


@pytest.mark.parametrize(
    "address",
    [
        "smtp://host", "smtp://host?from=a@b", "smtp://host?from=a@b&to=c", "smtp://host?from=a@b%0d%0aX:1&to=c@d",
        "smtp://user:secret@host?from=a@b&to=c@d", "smtp://user@host?from=a@b&to=c@d", "http://host?from=a@b&to=c@d",
        "smtp://host?from=a@b&to=c@d&subject=x", "smtp://host?from=a@b&to=c@d,e@f",
    ],
)  # fmt: skip
def test_wrong_addresses_of_mail_are_refused(address):
    with pytest.raises(InputError, match="--mail") as refusal:
        MailSender(address)
    assert "secret" not in str(refusal.value)


def write_measurements(folder: Path, usual: int, raised: int) -> None:
    """What a sensor that computes by itself sends: hourly, and four times as much in the end."""
    noise = np.random.default_rng(0).standard_normal((usual + raised, 2))
    for number, (first, second) in enumerate(noise):
        level = 0.3 * (4 if number >= usual else 1) * (1 + 0.03 * first)
        said = {"time": 1.7e9 + 3600 * number, "unit": "g", "rms": level, "kurtosis": 3 + 0.1 * second}
        path = receive(folder, "fan $x$", "1", json.dumps(said).encode(), stated=True)
        os.utime(path, (1.7e9, 1.7e9))


def test_a_change_reaches_people_by_command_and_by_mail_with_a_picture(tmp_path, command, mail_server):
    """The whole way, of a sensor that measures by itself."""
    write_measurements(tmp_path / "plant", usual=40, raised=6)
    (tmp_path / "received").touch()
    server = mail_server()
    words = ("watch", tmp_path / "plant", "--store", tmp_path / "plant.db", "--once", "--format", "json")
    status, out, _ = command(*words, "--notify", script(tmp_path, RECEIVE), "--mail", mail_address(server))
    assert status == 1
    assert [point["status"] for point in json.loads(out)["points"]] == ["alarm"]
    bundles = [json.loads(line) for line in (tmp_path / "received").read_text().splitlines()]
    (alarm,) = (event for bundle in bundles for event in bundle["events"] if event["kind"] == "alarm")
    assert alarm["status"]["status"] == "alarm"
    (content,) = server.mails
    (picture,) = email.message_from_bytes(content, policy=email.policy.default).iter_attachments()
    assert picture.get_content_type() == "image/png"
    assert picture.get_content().startswith(b"\x89PNG")
    again = command(*words, "--mail", mail_address(server))
    assert again[0] == 1
    assert len(server.mails) == 1, "the same alarm is sent once"


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_prometheus_reads_counts_statuses_and_a_bounded_number_of_points(monkeypatch):
    monkeypatch.setattr("bearcat.watch.out.MOST_LABELS", 2)
    with WatchMetrics("0") as metrics:
        statuses = [PointMemory(name, "1", WatchRule()).status for name in ("a", "b", 'c"\n{x}')]
        metrics.set_statuses(statuses)
        metrics.observe(
            [
                Assessment(replace(status, status=ALARM, time=1.7e9), "", {}, None, evidence, 5.0, "", 0.0)
                for status, evidence in zip(statuses, (1.0, 7.0, 3.0), strict=True)
            ],
            recordings=3, problems=1, seconds=0.3,
        )  # fmt: skip
        found = scraped(metrics.port)
        with pytest.raises(InputError, match="--metrics"):
            WatchMetrics(str(metrics.port))
    assert found["bearcat_watch_recordings_total"] == 3
    assert found["bearcat_watch_problems_total"] == 1
    assert found["bearcat_watch_recording_seconds_sum"] == pytest.approx(0.3)
    assert found["bearcat_watch_last_recording_seconds"] == 1.7e9
    assert found['bearcat_watch_points{status="alarm"}'] == 3
    evidence = {name: value for name, value in found.items() if name.startswith("bearcat_watch_evidence")}
    assert sorted(evidence.values()) == [3, 7], "those with most evidence"


@pytest.mark.parametrize("place", ["x", "", "70000", "9108:", "-1"])
def test_a_wrong_port_for_metrics_is_refused(place):
    with pytest.raises(InputError, match="--metrics"):
        WatchMetrics(place)


def folder_command() -> Any:
    from bearcat.cli.watch import FOLDER, commands

    return typer.main.get_command(commands).commands[FOLDER]


def test_the_unit_of_systemd_is_closed_and_its_command_is_accepted(tmp_path):
    text = (EXAMPLES / "bearcat-watch.service").read_text()
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    service = unit["Service"]
    program, command, *words = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("bearcat", "watch")
    folder_command().make_context("watch", words)
    assert service["DynamicUser"] == service["NoNewPrivileges"] == service["ProtectHome"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert set(service["SuccessExitStatus"].split()) == {str(STATUS[ALARM]), str(STATUS[CHECK])}
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine; the rest of the unit was checked")
    (tmp_path / "bearcat-watch.service").write_text(text.replace(program, "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "bearcat-watch.service"], capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_composed_services_fit_together_and_hold_no_secret():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    text = (EXAMPLES / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"watch", "broker", "db"}
    command, *words = services["watch"]["command"]
    given = folder_command().make_context("watch", words).params
    assert command == "watch"
    assert address_of("--mqtt", given["mqtt"], ["mqtt"]).hostname in services
    assert address_of("--store", given["store"], ["postgresql"]).hostname in services
    assert given["folder"].as_posix() in {place.split(":")[1] for place in services["watch"]["volumes"]}
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in name or value.startswith("${"), "passwords come from outside"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "nothing is open to a network unless somebody opens it"
    mounted = [place.split(":")[0] for service in services.values() for place in service["volumes"]]
    own = {name.removeprefix("./") for name in mounted if name.startswith("./")} - {"passwords"}
    assert all((EXAMPLES / name).is_file() for name in own)
    assert (EXAMPLES.parents[1] / services["watch"]["build"]["dockerfile"]).is_file()
