"""MQTT: recordings and measurements come in by topic, statuses and events go out.

    PREFIX/MACHINE/POINT/recording     in: a file (wav, flac, npy, …), or JSON with time, rate, rpm, unit and signal
    PREFIX/MACHINE/POINT/measurement   in: JSON of measurements by name, of sensors that compute by themselves
    PREFIX/MACHINE/POINT/status        out, kept by the broker: what is known of the point
    PREFIX/MACHINE/POINT/event         out: what happened

What comes in is acknowledged once it is on disk, and the broker keeps it for this client meanwhile (quality of service
1, a session that lasts). Going out, signs that mean something in a topic are written as %2F.

>>> with MqttLink("mqtt://broker.plant:1883/bearings", Path("plant"), note=print) as link:
...     link.publish_statuses(store.fleet())
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bearcat.data.datasets.folder import MANIFEST
from bearcat.errors import InputError
from bearcat.storage import digest
from bearcat.watch.incoming import receive
from bearcat.watch.notify import NETWORK_SECONDS, Bundle, Note, SendError, address_of, printable
from bearcat.watch.snapshot import PointStatus
from bearcat.watch.status import Fleet

MQTT_PASSWORD = "BEARCAT_MQTT_PASSWORD"  # noqa: S105 (the name of a variable of the environment)
KINDS = ("recording", "measurement")  # of messages that come in
RETRY = 5.0  # seconds until a message is written again to a disk that was full
NOTES = 20  # refusals that are named in a minute; more are counted
ESCAPED = {*"/+#$%", "\\"}  # signs of a name that are not written into a topic


class MqttLink(AbstractContextManager["MqttLink"]):
    """A connection that is made again whenever it breaks; also a sender of events."""

    pause = 0.0

    def __init__(self, address: str, folder: Path, note: Note) -> None:
        try:
            import paho.mqtt.client as paho
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError as error:
            raise InputError("--mqtt: needs an extra; pip install 'bearcat[mqtt]'") from error
        parts = address_of("--mqtt", address, ("mqtt", "mqtts"))
        self._prefix = unquote(parts.path).strip("/") or "bearcat"
        if set(self._prefix) & {"+", "#"} or not self._prefix.isprintable() or self._prefix.startswith("$"):
            raise InputError("--mqtt: the prefix after the host must be plain, without + and # and without $ at first")
        if parts.query or parts.fragment:
            raise InputError("--mqtt: give the address as mqtt://host:1883/prefix, without ? and #")
        if (folder / MANIFEST).exists():
            raise InputError(
                f"--mqtt: {folder} has a {MANIFEST}, so other files in it are not read; use another folder"
            )
        self.name = f"MQTT broker {parts.hostname}"
        self._folder, self._note = folder, note
        self._latest: dict[str, bytes] = {}  # by topic, what the broker is to keep
        self._published: set[str] = set()  # topics of those that were handed over
        self._last: Any = None  # the last of them
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._minute, self._refused, self._trouble = 0.0, 0, ""
        # The same name at every start: the broker keeps what comes while nobody is here.
        key = digest(f"{self._prefix} {folder.resolve()}".encode())[:15]
        self._client = paho.Client(CallbackAPIVersion.VERSION2, f"bearcat-{key}", clean_session=False, manual_ack=True)
        if parts.username is not None:
            password = unquote(parts.password) if parts.password else os.environ.get(MQTT_PASSWORD)
            self._client.username_pw_set(unquote(parts.username), password)
        if parts.scheme == "mqtts":
            self._client.tls_set_context(ssl.create_default_context())
        self._client.on_connect, self._client.on_subscribe = self._connected, self._subscribed
        self._client.on_message = self._arrived
        self._client.on_connect_fail, self._client.on_disconnect = self._failed, self._disconnected
        self._client.reconnect_delay_set(1, 60)
        self._client.connect_async(str(parts.hostname), parts.port or (8883 if parts.scheme == "mqtts" else 1883), 60)
        self._client.loop_start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._client.disconnect()
        self._client.loop_stop()

    def publish_statuses(self, statuses: Iterable[PointStatus]) -> None:
        """What is known of points; the broker keeps the last of each, also if it is away now."""
        for row in Fleet(statuses).rows():
            self._keep(self._topic(row["machine"], row["point"], "status"), row)

    def flush(self, seconds: float) -> None:
        """Waits until the broker has the statuses, for so long at most."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._ending.is_set():
            with self._lock:
                waiting = set(self._latest) - self._published
            if not waiting and (self._last is None or self._last.is_published()):
                return
            self._ending.wait(0.05)

    def _keep(self, topic: str, row: dict[str, Any]) -> None:
        content = json.dumps(row).encode()
        with self._lock:
            if self._latest.get(topic) == content:
                return
            self._latest[topic] = content
            self._published.discard(topic)
            if self._client.is_connected():
                self._publish(topic)

    def _publish(self, topic: str) -> None:
        """Hands the latest over while the lock is held, so that no older one follows it."""
        self._last = self._client.publish(topic, self._latest[topic], qos=1, retain=True)
        self._published.add(topic)

    def send(self, bundle: Bundle) -> None:
        """Publishes events and waits until the broker has them."""
        if not self._client.is_connected():
            raise SendError(self._trouble or "it is not connected")
        until, published = time.monotonic() + NETWORK_SECONDS, []
        for event in bundle.events:
            topic = self._topic(event["machine"], event["point"], "event")
            published.append(self._client.publish(topic, json.dumps(event).encode(), qos=1))
            if event["status"] is not None:
                self._keep(self._topic(event["machine"], event["point"], "status"), event["status"])
        for each in published:
            try:
                each.wait_for_publish(max(until - time.monotonic(), 0.01))
            except (ValueError, RuntimeError) as error:
                raise SendError(str(error)) from error
            if not each.is_published():
                raise SendError(f"it did not acknowledge within {NETWORK_SECONDS:g} s")

    def _topic(self, machine: str, point: str, kind: str) -> str:
        return "/".join([self._prefix, topic_part(machine), topic_part(point), kind])

    def _connected(self, client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._say_trouble(f"refuses the connection ({reason})")
            return
        self._trouble = ""
        client.subscribe([(f"{self._prefix}/+/+/{kind}", 1) for kind in KINDS])

    def _subscribed(self, *_: Any) -> None:
        """Publishes what the broker is to keep: not on connecting, for statuses that were on their way when a former
        connection broke are sent again after that, and would be newer than these.
        """
        with self._lock:
            for topic in self._latest:
                self._publish(topic)

    def _failed(self, *_: Any) -> None:
        self._say_trouble("cannot be reached")

    def _disconnected(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if not self._ending.is_set():
            self._say_trouble(f"the connection broke ({reason})")

    def _say_trouble(self, sentence: str) -> None:
        if sentence != self._trouble:
            self._trouble = sentence
            self._note(printable(f"{self.name}: {sentence}; it is tried again"))

    def _arrived(self, client: Any, _: Any, message: Any) -> None:
        """Writes a message, then acknowledges it; so is one that is refused, or it would come for ever."""
        topic = message._topic.decode("utf-8", "replace")  # its `topic` would end this thread if it were no UTF-8
        *_, machine, point, kind = topic.split("/")
        while not self._ending.is_set():
            try:
                receive(self._folder, machine, point, message.payload, stated=kind == "measurement")
            except InputError as error:
                self._refuse(f"{topic}: {error}")
            except OSError as error:  # without an acknowledgement the broker keeps it
                self._say_trouble(f"a message waits ({error})")
                self._ending.wait(RETRY)
                continue
            client.ack(message.mid, message.qos)
            return

    def _refuse(self, sentence: str) -> None:
        now = time.monotonic()
        if now - self._minute > 60:
            if self._refused > NOTES:
                self._note(f"{self.name}: {self._refused - NOTES} more messages were refused")
            self._minute, self._refused = now, 0
        self._refused += 1
        if self._refused <= NOTES:
            self._note(printable(f"{self.name}: a message was refused, {sentence}", 300))


def topic_part(name: str) -> str:
    """A name as one level of a topic; different names stay different."""
    return "".join(
        sign if sign.isprintable() and sign not in ESCAPED else "".join(f"%{byte:02X}" for byte in _bytes(sign))
        for sign in name
    )


def _bytes(sign: str) -> bytes:
    return sign.encode("utf-8", "surrogatepass")
