"""MQTT with a real broker: recordings and measurements come in, statuses and events go out, and nothing is lost."""

from __future__ import annotations

import io
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import wavfile

from bearcat.data.isolated import open_channels
from bearcat.data.times import time_in
from bearcat.errors import InputError
from bearcat.watch import incoming, notify
from bearcat.watch.incoming import receive, stated_snapshot
from bearcat.watch.mqtt import MQTT_PASSWORD, MqttLink, topic_part
from bearcat.watch.notify import Notifier
from bearcat.watch.snapshot import Event, PointStatus
from bearcat.watch.store import RecordingFile, Store
from tests.commands import start

NOISE = np.random.default_rng(0).standard_normal(500)
SIGNAL = {"time": "2024-05-01T10:32:39Z", "rate": 1000, "rpm": 1480.5, "unit": "m/s^2", "signal": [0.5, -1.25, 3.0]}
PREFIX = "plant/bearings"


class Broker:
    """A broker of our own on a free port of this machine, which keeps what it has over a restart."""

    def __init__(self, folder: Path, *lines: str) -> None:
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if program is None:
            pytest.skip("no mosquitto on this machine; `make broker` installs it where it can")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._words, self.process = [program, "-c", str(folder / "broker.conf")], None
        own = [
            "user root",  # started by root, it would become another user, who may not write here
            f"listener {self.port} 127.0.0.1",
            "log_dest none",
            "persistence true",
            f"persistence_location {folder}/",
        ]
        (folder / "broker.conf").write_text("\n".join([*own, *(lines or ["allow_anonymous true"]), ""]))

    def start(self) -> Broker:
        self.process = subprocess.Popen(self._words, stderr=subprocess.DEVNULL)
        eventually(self.answers)
        return self

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def address(self, user: str = "") -> str:
        return f"mqtt://{user}127.0.0.1:{self.port}/{PREFIX}"


def eventually(true: Callable[[], Any], seconds: float = 15.0) -> Any:
    """What is true in the end."""
    until = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made.start()
    made.stop()


@contextmanager
def client(broker: Broker) -> Iterator[tuple[Any, dict[str, list[bytes]]]]:
    """Another program at the broker, and what it was sent by topic."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    received: dict[str, list[bytes]] = {}
    other = Client(CallbackAPIVersion.VERSION2)
    other.on_message = lambda _c, _d, message: received.setdefault(message.topic, []).append(message.payload)
    other.connect("127.0.0.1", broker.port)
    other.loop_start()
    eventually(other.is_connected)
    yield other, received
    other.disconnect()
    other.loop_stop()


def publish(broker: Broker, *messages: tuple[str, bytes]) -> None:
    with client(broker) as (other, _):
        for topic, content in messages:
            other.publish(f"{PREFIX}/{topic}", content, qos=1).wait_for_publish(10)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def wav(scale: float = 1.0) -> bytes:
    content = io.BytesIO()
    wavfile.write(content, 2000, (scale * NOISE).astype(np.float32))
    return content.getvalue()


def test_recordings_and_measurements_become_files_that_say_what_the_message_said(broker, tmp_path):
    folder, notes = tmp_path / "machines", list[str]()
    with MqttLink(broker.address(), folder, notes.append) as link:
        eventually(link._client.is_connected)
        publish(
            broker,
            ("pump 3/drive end/recording", wav()),
            ("pump 3/drive end/recording", wav()),  # twice: one file
            ("pump 3/fan end/recording", json.dumps(SIGNAL).encode()),
            ("fan/1/measurement", b'{"time": 1714559559, "unit": "g", "rms": 0.31, "temperature": 61}'),
        )
        eventually(lambda: len(files(folder)) == 3)
    assert notes == []
    stated, first, second = files(folder)
    assert first.relative_to(folder).parts[:2] == ("pump 3", "drive end")
    assert first.read_bytes() == wav()
    assert second.name.startswith("20240501T103239.000000Z-")
    opened = open_channels(second)
    (name,) = opened.names
    assert (name, opened.rates[name], opened.speed) == ("signal [m/s^2]", 1000, "rpm")
    assert [*next(iter(opened.stream(name).blocks))] == SIGNAL["signal"]
    opened.close()
    snapshot = stated_snapshot(stated, "fan", "1", 0.0, "")
    assert time_in(stated.stem) == 1714559559
    assert snapshot.values == {"rms": 0.31, "temperature": 61.0}


def test_what_is_published_while_nobody_listens_or_the_disk_is_full_arrives_later(broker, tmp_path, monkeypatch):
    folder, notes = tmp_path / "machines", list[str]()
    with MqttLink(broker.address(), folder, notes.append) as link:
        eventually(link._client.is_connected)
        monkeypatch.setattr(incoming, "SPARE", 2**60)
        publish(broker, ("pump/1/recording", wav(1)))
        eventually(lambda: any("full" in note for note in notes))
        assert files(folder) == []
    publish(broker, ("pump/1/recording", wav(2)))
    broker.stop()
    broker.start()
    monkeypatch.setattr(incoming, "SPARE", 0)
    with MqttLink(broker.address(), folder, notes.append):
        eventually(lambda: len(files(folder)) == 2)
    assert {path.read_bytes() for path in files(folder)} == {wav(1), wav(2)}


def test_bad_messages_are_refused_in_a_sentence_and_good_ones_go_on(broker, tmp_path):
    folder, notes = tmp_path / "machines", list[str]()
    bad = [
        ("a/b/recording", b"\x1b[31mhello"), ("a/b/recording", b"{"), ("a/b/recording", b'{"rate": 1}'),
        ("a/b/measurement", b"[1]"), ("a/b/measurement", b'{"rmss": 1}'), ("../b/recording", wav()),
        ("a//recording", wav()), ("a/.b/recording", wav()), ("a/b\\c/recording", wav()),
    ]  # fmt: skip
    with MqttLink(broker.address(), folder, notes.append) as link:
        eventually(link._client.is_connected)
        publish(broker, *bad, ("a/b/recording", wav()))
        eventually(lambda: files(folder))
    assert len(files(folder)) == 1
    assert len(notes) == len(bad)
    assert all(note.isprintable() for note in notes)
    assert files(tmp_path / "b") == []


def test_statuses_are_kept_by_the_broker_and_events_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(notify, "FIRST_WAIT", 0.1)
    broker = Broker(tmp_path)
    status = PointStatus("mill/fan", "1+#", "alarm", 0.0, "outer race", 0.9, ("since Monday",), None, 1.0, 5, "", 5, 5)
    with Store.open(tmp_path / "plant.db", create=True) as store:
        store.add(RecordingFile("x", "", "x", 1, 1), events=[Event("mill/fan", "1+#", 0.0, "alarm", "it grows")])
        with MqttLink(broker.address(), tmp_path / "machines", print) as link:
            link.publish_statuses([status])
            with Notifier(store.name, [link], lambda _: None) as notifier:
                assert not notifier.drain(0.3), "there is no broker yet"
                broker.start()
                try:
                    with client(broker) as (other, received):
                        other.subscribe(f"{PREFIX}/#", 1)
                        assert notifier.drain(20)
                        topics = [f"{PREFIX}/mill%2Ffan/1%2B%23/{kind}" for kind in ("event", "status")]
                        eventually(lambda: len(received) == 2)
                    assert sorted(received) == topics
                    assert json.loads(received[topics[0]][0])["sentence"] == "it grows"
                    with client(broker) as (late, kept):
                        late.subscribe(f"{PREFIX}/#", 1)
                        eventually(lambda: kept)
                        assert list(kept) == topics[1:], "the status is there for whoever comes later"
                    assert json.loads(kept[topics[1]][0])["fault"] == "outer race"
                finally:
                    broker.stop()


def test_the_last_status_stays_the_last_when_the_broker_dies_with_one_on_its_way(tmp_path):
    def status(number: int) -> PointStatus:
        return PointStatus("fan", "1", "ok", 0.0, "healthy", 0.9, (), None, 1.0, number, "", number, number)

    broker = Broker(tmp_path).start()
    try:
        with MqttLink(broker.address(), tmp_path / "machines", lambda _: None) as link:
            link.publish_statuses([status(1)])
            link.flush(10)
            broker.process.send_signal(signal.SIGSTOP)
            link.publish_statuses([status(2)])  # goes out and is not acknowledged
            broker.process.kill()
            broker.process.wait()
            eventually(lambda: not link._client.is_connected())
            link.publish_statuses([status(3)])
            broker.start()
            link.flush(20)
            with client(broker) as (late, kept):
                late.subscribe(f"{PREFIX}/#", 1)
                eventually(lambda: kept)
            assert json.loads(kept[f"{PREFIX}/fan/1/status"][-1])["recordings"] == 3
    finally:
        broker.stop()


def test_a_password_opens_the_broker_and_is_never_printed(tmp_path, monkeypatch):
    people = tmp_path / "people"
    people.touch(mode=0o600)
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("no mosquitto_passwd on this machine")
    subprocess.run(["mosquitto_passwd", "-b", people, "plant", "right one"], check=True)
    broker = Broker(tmp_path, "allow_anonymous false", f"password_file {people}").start()
    try:
        notes: list[str] = []
        with MqttLink(broker.address("plant:wrong%20one@"), tmp_path / "machines", notes.append):
            eventually(lambda: notes)
        assert "wrong" not in "".join(notes)
        monkeypatch.setenv(MQTT_PASSWORD, "right one")
        with MqttLink(broker.address("plant@"), tmp_path / "machines", notes.append) as link:
            eventually(link._client.is_connected)
    finally:
        broker.stop()


@pytest.mark.slow
def test_a_watch_that_is_killed_loses_and_repeats_nothing(broker, tmp_path):
    """Messages come in, statuses go out, the process is killed, messages come in meanwhile, and it starts again."""
    folder, topic = tmp_path / "machines", f"{PREFIX}/fan/1/status"
    folder.mkdir()
    words = ("watch", folder, "--store", tmp_path / "plant.db", "--mqtt", broker.address())
    messages = [
        ("fan/1/measurement", json.dumps({"time": 1.7e9 + 3600 * number, "rms": 0.3 + number / 100}).encode())
        for number in range(4)
    ]
    with client(broker) as (other, received):
        other.subscribe(f"{PREFIX}/#", 1)

        def arrived(number: int) -> bool:
            return topic in received and json.loads(received[topic][-1])["recordings"] == number

        def sent_and_arrived() -> bool:  # until it listens, messages are for nobody; twice they are one
            publish(broker, *messages[:2])
            time.sleep(0.2)
            return arrived(2)

        for true in (sent_and_arrived, lambda: arrived(4)):
            process = start(*words)
            try:
                eventually(true, 60)
            finally:
                process.kill()
                process.join()
            publish(broker, *messages[2:])
    with Store.open(tmp_path / "plant.db") as store:
        assert [round(row.values["rms"], 2) for row in store.trend("fan", "1")] == [0.3, 0.31, 0.32, 0.33]


@pytest.mark.parametrize(
    "address",
    ["http://host/x", "mqtt:///x", "mqtt://host/a/+/b", "mqtt://host/%23", "mqtt://host/$SYS", "mqtt://host:99999/x",
     "mqtt://u:secret@host/a?b=1"],
)  # fmt: skip
def test_wrong_addresses_of_brokers_are_refused(tmp_path, address):
    with pytest.raises(InputError, match="--mqtt") as refusal:
        MqttLink(address, tmp_path, print)
    assert "secret" not in str(refusal.value)


def test_a_folder_with_a_manifest_takes_no_messages(tmp_path):
    (tmp_path / "manifest.csv").touch()
    with pytest.raises(InputError, match=r"manifest\.csv"):
        MqttLink("mqtt://127.0.0.1:1/x", tmp_path, print)


def test_names_stay_different_in_topics_and_mean_nothing_there():
    names = ["a/b", "a_b", "a+b", "#", "$SYS", "%2F", "/", "ä b", "x\r\n", "\udcff", "\\"]
    parts = [topic_part(name) for name in names]
    assert len(set(parts)) == len(names)
    assert not set("".join(parts)) & set("/+#$\r\n\\")
    assert topic_part("pump 3, ä") == "pump 3, ä"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "x" * 200, "a\nb", "C:", "a ", "\udcff"]
)
def test_names_of_messages_never_lead_elsewhere(tmp_path, name):
    for machine, point in ((name, "1"), ("pump", name)):
        with pytest.raises(InputError, match="name"):
            receive(tmp_path / "in", machine, point, wav())
    assert files(tmp_path) == []


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "pump").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="link"):
        receive(tmp_path / "in", "pump", "1", wav())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"time": "yesterday"}, "time"), ({"time": 4e9}, "time"), ({"time": -1}, "time"), ({"rate": 0}, "rate"),
        ({"rate": "1000"}, "rate"), ({"rate": 10**400}, "rate"), ({"rpm": -5}, "rpm"), ({"rpm": True}, "rpm"),
        ({"unit": "g\r\n"}, "unit"), ({"signal": []}, "signal"), ({"signal": [1, None]}, "signal"),
        ({"signal": [[1, 2]]}, "signal"), ({"signal": [1, float("nan")]}, "signal"), ({"signal": [1, [2]]}, "signal"),
        ({"signal": ["a", "b"]}, "signal"), ({"signals": [1, 2]}, "signals"),
    ],
)  # fmt: skip
def test_a_signal_in_json_is_checked_field_by_field(tmp_path, change, field):
    with pytest.raises(InputError, match=f"'{field}'"):
        receive(tmp_path, "pump", "1", json.dumps(SIGNAL | change).encode())


def test_messages_are_bounded(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="bytes"):
        receive(tmp_path, "pump", "1", b'{"rms": 1' + b" " * incoming.MOST_STATED + b"}", stated=True)
    with pytest.raises(InputError, match="JSON"):
        receive(tmp_path, "pump", "1", b'{"signal": ' + b"[" * 100_000)
    monkeypatch.setattr(incoming, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="bytes"):
        receive(tmp_path, "pump", "1", wav())
    large = tmp_path / f"large{incoming.MEASUREMENT}"
    large.write_bytes(b" " * (incoming.MOST_STATED + 1))
    with pytest.raises(InputError, match="large"):
        stated_snapshot(large, "pump", "1", 0.0, "")
