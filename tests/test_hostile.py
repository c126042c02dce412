"""Nothing a file or a client can do (docs/security.md): each attack is built here, and meets a sentence.

More hostile files are in test_isolated.py, archives in test_archives.py, the compiled library in test_native.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bearcat.data.isolated import Readers, read_signals
from bearcat.data.recording import resample
from bearcat.data.signals import BLOCK, TooLargeError
from bearcat.data.stream import Stream
from bearcat.data.stream import open_stream as read_here
from bearcat.deploy.model import export_onnx, load_model
from bearcat.deploy.predict import at_rate_of, open_model, open_stream, resampled
from bearcat.deploy.predictor import FIELDS, FOLDER, ONNX, OnnxModel, load_onnx
from bearcat.errors import InputError, suggest
from bearcat.report.results import read_result
from bearcat.runs.grid import read_grid
from bearcat.storage import digest_json
from tests import fuzz, fuzz_runs, fuzz_watch
from tests.commands import PYTHON, bearcat, ended, start
from tests.conftest import make_recording
from tests.pooled import pool_stream
from tests.test_artefact import made_model, save_model
from tests.test_isolated import MAT_HEAD, matrix, part
from tests.test_serve import LENGTH, RATE, START, Server, as_npy, as_wav, noise, refused

pytestmark = pytest.mark.usefixtures("traced_once")

DESCRIPTORS = 600  # of the server below; its connections are fewer
CRASH = MAT_HEAD + matrix(6, (1, 1), part(99, bytes(8)))  # a data type that there is not: 479 bytes were enough
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))\n{START}"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "model", made_model())
    export_onnx(made_model(), folder / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def server(models, tmp_path_factory) -> Iterator[Server]:
    limits = ("--max-bytes", 2**23, "--timeout", 4, "--concurrency", 4)
    running = Server(tmp_path_factory.mktemp("server"), models / "model.onnx", *limits, code=LIMITED)
    yield running
    assert running.stop() == 0
    assert len(running.logged()) < 10_000


def peak(server: Server) -> int:
    """The most memory that the server has ever had, in bytes."""
    return 1024 * int(Path(f"/proc/{server.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])


# Files.


def test_files_that_crash_their_parser_are_a_sentence_on_the_command_line(models, tmp_path):
    (tmp_path / "crash.mat").write_bytes(CRASH)
    (tmp_path / "a.wav").write_bytes(as_wav(noise(4 * LENGTH)))
    found = bearcat("predict", models / "model.onnx", tmp_path / "crash.mat", "--rate", RATE)
    assert found.returncode == 2
    assert "crash.mat" in found.stderr
    found = bearcat("predict", models / "model.onnx", tmp_path, "--alarm", "healthy", "--format", "csv")
    assert "a.wav" in found.stdout, "the others go on"
    with pytest.raises(InputError, match=r"crash\.mat"):
        read_signals(tmp_path / "crash.mat")


def test_every_dataset_reads_risky_files_in_a_child(tmp_path):
    """As the published ones lie on disk: a file that crashes is named."""
    from bearcat.data.datasets.benches import CWRU, HITSM, Paderborn

    (tmp_path / "mfs").mkdir()
    for name in ("97.mat", "N15_M07_F10_KA04_1.mat", "mfs/IR2_600.mat"):
        (tmp_path / name).write_bytes(CRASH)
    for dataset in (CWRU(tmp_path), Paderborn(tmp_path), HITSM(tmp_path)):
        (entry,) = dataset.catalogue().entries
        with pytest.raises(InputError, match=r"\.mat: cannot be read"):
            entry.read()


def test_a_parquet_file_with_any_byte_changed_leaves_the_reader_as_it_was(tmp_path):
    parquet.write_table(pa.table({"a": noise(512)}), tmp_path / "a.parquet", compression="none")
    whole = (tmp_path / "a.parquet").read_bytes()
    sentences, footer = [], len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
    with Readers(1, 2**22) as readers:
        for place in [*range(4, 30, 3), *range(footer, footer + 60, 6)]:
            changed = bytearray(whole)
            changed[place] ^= 0xFF
            (tmp_path / "a.parquet").write_bytes(changed)
            try:
                with readers.open_stream(tmp_path / "a.parquet", None, "it", time.monotonic() + 60) as stream:
                    list(stream.blocks)
            except InputError as error:
                sentences.append(str(error))
        assert sentences
        assert all(sentence.startswith("it: ") for sentence in sentences)
        (tmp_path / "a.parquet").write_bytes(whole)
        with readers.open_stream(tmp_path / "a.parquet", None, "it", time.monotonic() + 60) as stream:
            assert sum(block.size for block in stream.blocks) == 512


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_parquet_pages_that_announce_two_gibibytes_take_none_of_it(tmp_path, codec):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"a": noise(4096)}), path, compression=codec, use_dictionary=False)
    column = parquet.ParquetFile(path).metadata.row_group(0).column(0)
    content, place = path.read_bytes(), column.data_page_offset
    # A page's header, in Thrift's compact form: its kind, its size and its size compressed, each behind a byte 0x15.
    assert content[place : place + 3] == b"\x15\x00\x15"
    end = place + 3
    while content[end] & 0x80:
        end += 1
    lie = b"\xfe\xff\xff\xff\x0f"  # 2³¹ − 1
    path.write_bytes(content[: place + 3] + lie + content[end + 1 :])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"a\.parquet"):
        read_signals(path, "a.parquet")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # kB, in this process


def test_headers_that_announce_more_than_there_is_are_refused_before_memory_is_taken(tmp_path):
    with h5py.File(tmp_path / "chunks.mat", "w") as tree:
        tree.create_dataset("a", shape=(1000,), maxshape=(None,), dtype="f8", chunks=(2**28,))
    with pytest.raises(TooLargeError, match="chunks"):
        open_stream(tmp_path / "chunks.mat")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000,), }".ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(InputError, match="announces more"):
        open_stream(tmp_path / "lie.npz")


def test_a_plain_format_is_read_in_a_child_too_where_it_was_uploaded(tmp_path):
    (tmp_path / "a.wav").write_bytes(as_wav(noise(3 * BLOCK)))
    with Readers(None, 2**24, plain=1) as readers:
        for _ in range(2):
            with readers.open_stream(tmp_path / "a.wav", None, "it", time.monotonic() + 60) as stream:
                found = np.concatenate(list(stream.blocks))
            assert np.array_equal(found, noise(3 * BLOCK))
            with readers.open_stream(tmp_path / "a.wav", None, "it", time.monotonic() + 60) as stream:
                next(stream.blocks)  # and no more
        (reader,) = readers._idle[False].queue
        limits = Path(f"/proc/{reader.child.process.pid}/limits").read_text()
    assert "Max file size             0" in limits


def test_mutations_of_every_format_are_samples_or_a_sentence(tmp_path):
    """Some seconds of what `make fuzz` does for longer; a new seed every day."""
    seed, end, count = int(time.time()) // 86_400, time.monotonic() + 2, 0
    sentences: dict[tuple[str, str], int] = {}
    with Readers(1, 2**22, plain=1) as readers:
        for name, content in fuzz.mutations(seed):
            path = tmp_path / name
            path.write_bytes(content)
            try:
                with readers.open_stream(path, None, name, time.monotonic() + 20) as stream:
                    assert all(np.isfinite(block).all() for block in stream.blocks)
            except InputError as error:
                sentences[name, str(error)] = count
            count += 1
            if time.monotonic() > end and count >= 40:
                break
    for (name, sentence), number in sentences.items():
        assert sentence.startswith(name), (seed, number)
        assert len(sentence) < 1000, (seed, number)


@pytest.mark.parametrize(("part", "count"), [("mcp", 12), ("check", 8), ("report", 6)])
def test_mutated_runs_and_requests_of_an_assistant_break_no_promise(part, count):
    """A little of what `make fuzz` does for longer; a new seed every day."""
    assert (fuzz_watch.PARTS | fuzz_runs.PARTS)[part](count, int(time.time()) // 86_400, 30.0) == 0


def test_make_fuzz_tries_every_query_field_and_every_option_of_its_commands():
    import typer

    from bearcat.cli import app
    from bearcat.deploy.serve.answer import PredictQuery

    assert set(PredictQuery.model_fields) <= set(fuzz.FIELDS)
    for command, tried in (fuzz.OPTIONS | fuzz_runs.RUN_OPTIONS).items():
        found = typer.main.get_command(app)
        for word in [*command.split(), "FOLDER"] if command == "watch" else command.split():
            found = found.commands[word]
        named = {name for each in found.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}
        assert named - set(tried) - fuzz.ELSEWHERE == set(), command
        assert set(tried) <= named, command


def test_files_that_once_broke_something_are_named(command, tmp_path):
    """Those that `make fuzz` keeps."""
    status, printed, said = command("diagnose", fuzz.FOUND, "--rpm", 1500, "--bearing", "6205", "--format", "csv")
    for store in fuzz.FOUND.glob("*.db"):
        assert command("report", store, "--out", tmp_path / "page.html")[0] in (0, 2)
    names = [path.name for path in fuzz.FOUND.iterdir() if path.is_file() and path.suffix != ".db"]
    assert len(names) >= 4
    assert [name for name in names if name not in printed] == []
    assert (status in (1, 2, 3), "Traceback" in said) == (True, False)


def test_resampling_has_bounds_before_anything_is_allocated():
    model = made_model()
    for rate in (1e-3, 100, 2e7):
        with pytest.raises(InputError, match="check the rate") as raised:
            at_rate_of(model, replace(_stream(), rate=None), rate)
        assert raised.value.field == "rate"
        with pytest.raises(InputError, match="check the rate"):
            resample(make_recording(rate=rate), RATE)
    pieces = list(resampled([noise(BLOCK)], 100, 1))
    assert sum(piece.size for piece in pieces) == 100 * BLOCK
    assert max(piece.size for piece in pieces) <= 2 * BLOCK, "a block becomes no more than a block at a time"


def _stream() -> Stream:
    return Stream("it", None, iter([noise(LENGTH)]))


def test_names_from_a_file_cost_no_time_and_no_page(tmp_path):
    names = [f"{number:05}{'x' * 10_000}" for number in range(5000)]
    start_ = time.process_time()
    sentence = suggest("y" * 10_000, names)
    assert time.process_time() - start_ < 1
    assert len(sentence) < 10_000


def test_text_without_numbers_is_given_up_soon(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x\n" * 2**17)
    start_ = time.process_time()
    with pytest.raises(InputError, match="numbers"):
        open_stream(tmp_path / "a.txt")
    assert time.process_time() - start_ < 1, "all of its rows would take ten times that"


def test_a_pipe_or_a_device_is_no_recording_and_no_model(models, tmp_path):
    os.mkfifo(tmp_path / "a.wav")
    for path in (tmp_path / "a.wav", Path("/dev/zero")):
        with pytest.raises(InputError):
            open_stream(path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.safetensors").write_bytes(b"")
    os.mkfifo(tmp_path / "model" / "model.json")
    with pytest.raises(InputError, match="regular"):
        load_model(tmp_path / "model")


def test_nesting_and_huge_numbers_are_a_sentence_each(tmp_path, command):
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "record.json").write_text(deep)
    (tmp_path / "model.json").write_text(deep)
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"record\.json"):
        read_result(tmp_path)
    with pytest.raises(InputError, match="damaged"):
        load_model(tmp_path)
    (tmp_path / "deep.toml").write_text(f"a = {deep}")
    (tmp_path / "seeds.toml").write_text("seeds = 1000000000\n[data]\nname = 'simulated'\n")
    with pytest.raises(InputError, match=r"deep\.toml"):
        read_grid(tmp_path / "deep.toml")
    with pytest.raises(InputError, match="seeds"):
        read_grid(tmp_path / "seeds.toml")
    for setting in ('"dense:widths=1-99999999999"', '"dense:widths=99999999"'):
        method = f"[[method]]\nname = 'wide'\nrecipe = 'DANN'\nset.encoder = {setting}\n"
        (tmp_path / "wide.toml").write_text(f"data = 'simulated'\ndomains = ['0', '1']\nseeds = 1\n{method}")
        status, _, said = command("bench", "run", tmp_path / "wide.toml", "--store", tmp_path / "store")
        assert (status, "widths" in said) == (2, True)


WRONG = {
    "classes": ([], [1, 2], "inner", ["a", "a"], [["a"]]), "channels": (0, "1", True, 2**40, None),
    "preparation": (None, [], 3), "preparation.length": ("256", 1, 2**40, 2.5), "preparation.stride": (0, "1", -3),
    "preparation.rate": ("fast", -1, 0, [1]), "preparation.input": (None, 3, ["time"]), "rate": ("12000", -1, {}, True),
    "channel": (3, ["x"], "x" * 20_000), "bearing": ("6205", {"balls": 9}, {"balls": "9", "ball_diameter": 1, "pitch_diameter": 9}, []),
    "rpm": ("900", 0, -1, [900]), "needs": ("rpm", ["speed"], None),
    "encoder": (None, 7, "dense:widths=1-99999999999"), "calibrator": (7,), "calibrated": (None, 1, "no"), "calibration_at_bound": (None, 0),
    "pooled_temperature": (None, "1", 0, -1.0, [1]), "familiarity": (3, "known", []),
    "made_by": (None, 3, "bearcat"), "sha256": (None, 3),
    "decision": (None, "use", {}, {"action": "sell", "expected": 1.0, "interval": None, "reasons": []},
                 {"action": "use", "expected": 3.0, "interval": None, "reasons": []}, {"action": "use", "expected": 1.0, "interval": [2], "reasons": []}),
}  # fmt: skip


def test_every_field_of_a_model_has_wrong_values_to_try():
    assert set(WRONG) == set(FIELDS)
    assert set(FOLDER) | set(ONNX) == set(FIELDS)


@pytest.mark.parametrize("name", sorted(FOLDER))
def test_metadata_of_a_wrong_type_are_refused_by_name(models, tmp_path, name):
    """Sealed by whoever changed it, as an attacker would."""
    original = json.loads((models / "model" / "model.json").read_text())
    (tmp_path / "weights.safetensors").write_bytes((models / "model" / "weights.safetensors").read_bytes())
    for wrong in (*WRONG[name], ...):
        metadata = json.loads(json.dumps({key: value for key, value in original.items() if key != "seal"}))
        *above, last = name.split(".")
        place = metadata[above[0]] if above else metadata
        if wrong is ...:
            del place[last]
        else:
            place[last] = wrong
        sealed = metadata | {"seal": digest_json(metadata)}
        (tmp_path / "model.json").write_text(json.dumps(sealed))
        with pytest.raises(InputError, match=r"damaged|metadata|match"):
            load_model(tmp_path)


def test_metadata_of_an_onnx_file_are_checked_the_same_way(models):
    graph = load_onnx(models / "model.onnx").graph
    whole = dict(graph.metadata)

    def refused_with(changes: dict[str, str], match: str, without: str | None = None) -> None:
        graph.metadata = {name: text for name, text in (whole | changes).items() if name != without}
        with pytest.raises(InputError, match=match):
            OnnxModel.of_graph(graph, Path("changed.onnx"))

    for name in ONNX:
        *above, last = name.split(".")
        key = (above or [last])[0]
        for wrong in WRONG[name]:
            value = json.loads(whole[key]) | {last: wrong} if above else wrong
            refused_with({key: json.dumps(value)}, name.replace(".", r"\."))
        refused_with({}, key, without=key)
    for key, value in (("made_by", "[" * 100_000), ("classes", '["one"]'), ("channels", "3")):
        refused_with({key: value}, "metadata")


# The command line.


def test_only_an_alarm_has_status_1(models, tmp_path, command, monkeypatch):
    (tmp_path / "token.npy").write_bytes(
        b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '''<f4".ljust(117) + b"\n" + bytes(64)
    )
    silent = bytearray(as_wav(noise(4 * LENGTH)))
    silent[22:24] = bytes(2)  # channels
    (tmp_path / "silent.wav").write_bytes(silent)
    for name in ("token.npy", "silent.wav"):
        status, _, said = command("predict", models / "model.onnx", tmp_path / name, "--rate", RATE)
        assert (status, name in said, "Traceback" in said) == (2, True, False)

    monkeypatch.setattr("bearcat.deploy.predict.open_model", None)  # a bug of ours: what is called is no function
    status, _, said = command("predict", models / "model.onnx", tmp_path / "token.npy")
    assert (status, "report" in said) == (70, True)


def test_a_closed_pipe_is_no_alarm(models, tmp_path):
    (tmp_path / "a.wav").write_bytes(as_wav(noise(2000 * LENGTH)))
    words = [*PYTHON, "predict", models / "model.onnx", tmp_path / "a.wav", "--by", "window"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline()  # there is more than a pipe holds
    assert process.returncode == 141


def test_an_export_to_a_full_disk_is_a_sentence_and_leaves_nothing(models, tmp_path):
    errors = tmp_path / "errors"
    process = start("export", models / "model", "--onnx", tmp_path / "out" / "a.onnx", errors=errors, largest_file=4096)
    process.join(120)
    assert process.exitcode == 2
    assert "a.onnx" in errors.read_text()
    assert "Traceback" not in errors.read_text()
    assert list((tmp_path / "out").iterdir()) == []


def test_names_of_files_are_printed_as_they_are(models, tmp_path, command, monkeypatch):
    names = ["pump[inner].wav", "x[/b].wav", "b] :bee: [bold].wav"]  # of which the second closes what rich calls markup
    (tmp_path / "x[").mkdir()
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(as_wav(noise(4 * LENGTH, number)))
    monkeypatch.chdir(tmp_path)
    status, printed, _ = command("predict", models / "model.onnx", *names)
    assert status in (0, 1, 3)
    assert [name for name in names if name not in printed] == []


def test_an_empty_token_is_refused(models, command, monkeypatch):
    monkeypatch.setenv("BEARCAT_TOKEN", "")
    status, _, said = command("serve", models / "model.onnx", "--port", "0")
    assert (status, "BEARCAT_TOKEN" in said) == (2, True)


# Clients.


def test_a_file_that_crashes_is_the_clients_fault_and_the_server_goes_on(server):
    assert server.upload("a.npy", as_npy(noise(4 * LENGTH)), rate=RATE).status_code == 200
    refused(server.upload("a.mat", CRASH, rate=RATE), 422, "file")
    refused(server.upload("a.npy", as_npy(noise(3000)), rate=1e-3), 422, "rate")
    assert server.upload("a.npy", as_npy(noise(4 * LENGTH)), rate=RATE).status_code == 200


def test_refused_bodies_leave_no_memory_behind(server):
    """Each becomes some thirty megabytes of Python objects, and is refused for its last window."""
    window = noise(LENGTH).round(4).tolist()
    body = json.dumps({"windows": [window] * 400 + [window[:-1]]}).encode()
    for _ in range(5):
        refused(server.windows(body), 422, "windows.400")
    before = server.memory()
    for _ in range(50):
        refused(server.windows(body), 422, "windows.400")
    assert server.memory() - before < 100 * 2**20
    tiny = b'{"windows": [' + b"[]," * (2**21) + b"[]]}"
    before = peak(server)
    for _ in range(2):
        refused(server.windows(tiny), 422, "body")
        refused(server.windows(b'{"windows": [' + b"{}," * (2**21) + b"{}]}"), 422, "body")
    assert peak(server) - before < 100 * 2**20, "refused before it was built"


def test_silent_connections_keep_nobody_out_and_fill_no_log(models, tmp_path):
    server = Server(tmp_path, models / "model.onnx", "--timeout", 1.5, code=LIMITED)
    place = (server.place.hostname, server.place.port)
    silent = [socket.create_connection(place) for _ in range(400)]
    try:
        for _ in range(3):
            start_ = time.monotonic()
            assert server.client.get("/health").json() == {"status": "ok"}
            assert time.monotonic() - start_ < 8
        silent[-1].settimeout(8)
        assert silent[-1].recv(1) == b"", "closed, for it never asked anything"
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < DESCRIPTORS
        assert len(server.logged()) < 10_000
    finally:
        for connection in silent:
            connection.close()
        assert server.stop() == 0


def test_what_is_left_of_a_refused_body_is_not_read_for_ever(server):
    with socket.create_connection((server.place.hostname, server.place.port)) as connection:
        connection.sendall(
            b"POST /predict?filename=a.wav HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n"
            b"Content-Type: application/octet-stream\r\n\r\n"
        )
        connection.settimeout(10)
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
        start_ = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start_ < 10:
                connection.sendall(bytes(1000))
                time.sleep(0.05)
        assert time.monotonic() - start_ < 6


def test_work_ends_with_its_client_and_a_killed_server_leaves_no_uploads(models, tmp_path):
    server = Server(tmp_path, models / "model.onnx")  # requests have 30 s
    samples = as_npy((100 * noise(2**23)).astype(np.int8))  # minutes of work at a hundredth of the model's rate
    with socket.create_connection((server.place.hostname, server.place.port)) as connection:
        head = f"POST /predict?filename=a.npy&rate={RATE / 100} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: application/octet-stream\r\nContent-Length: {len(samples)}\r\n\r\n"
        connection.sendall(head.encode() + samples)
        time.sleep(0.5)
        assert server.gauge() == 1
    gone = time.monotonic()
    server.until(0)
    assert time.monotonic() - gone < 15
    with socket.create_connection((server.place.hostname, server.place.port)) as connection:
        connection.sendall(
            b"POST /predict?filename=a.wav HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
            b"Content-Type: application/octet-stream\r\n\r\n" + bytes(500_000)
        )
        server.until(1)
        assert list(server.temporary.rglob("*.wav"))
        server.process.send_signal(signal.SIGKILL)
        server.stop(ask=False)
    end = time.monotonic() + 20
    while list(server.temporary.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.05)


# What prediction opens.


def watched(model: str, folder: str, report: str) -> None:
    """Diagnoses every file in the folder, and writes what was opened that is neither model, recording nor library."""
    import h5py  # noqa: F401 (loaded before, as the other libraries)
    import pandas  # noqa: F401
    import scipy.signal  # noqa: F401

    import bearcat.deploy.graph as graph

    graph.sys = SimpleNamespace(platform="win32")  # where a graph runs in this process, so that it can be watched
    files, opened, other = sorted(Path(folder).iterdir()), set(), set()

    def watch(event: str, arguments: tuple) -> None:
        if event == "open" and isinstance(arguments[0], str):
            opened.add(arguments[0])
        elif event.startswith(("socket.", "subprocess.", "os.", "shutil.", "urllib.")):
            other.add(event)

    open_model(Path(model))  # libraries look at the system when they are used first
    sys.addaudithook(watch)
    loaded = open_model(Path(model))
    for path in files:
        channel = "a" if path.name == "struct.mat" else "1" if path.suffix == ".wav" else None
        stream, _ = at_rate_of(loaded, read_here(path, channel), 12_000)
        pool_stream(loaded, stream)
    libraries = tuple({sys.prefix, sys.base_prefix, *filter(None, sys.path)})
    given = {model, *(str(path) for path in files), *(str(path) for path in Path(model).rglob("*"))}
    found = sorted(path for path in opened if path not in given and not path.startswith(libraries))
    Path(report).write_text(json.dumps([found, sorted(other - {"os.listdir", "os.scandir", "os.putenv"})]))


@pytest.mark.parametrize("kind", ["model", "model.onnx"])
def test_prediction_opens_its_model_and_its_recordings_alone(models, tmp_path, kind):
    (tmp_path / "files").mkdir()
    for name, content in fuzz.honest_files().items():
        (tmp_path / "files" / name).write_bytes(content)
    assert ended(watched, str(models / kind), str(tmp_path / "files"), str(tmp_path / "report")) == 0
    assert json.loads((tmp_path / "report").read_text()) == [[], []]
