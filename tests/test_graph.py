"""A hostile ONNX graph: it ends in its own process, within its time and memory, and signals still end ours."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bearcat.deploy import graph as graphs
from bearcat.deploy.model import export_onnx
from bearcat.deploy.predictor import load_onnx
from bearcat.errors import InputError
from tests.commands import bearcat, start
from tests.test_artefact import made_model
from tests.test_serve import LENGTH, RATE, Server, as_wav, noise

pytestmark = pytest.mark.usefixtures("traced_once")
WINDOWS = noise(2 * LENGTH).reshape(2, 1, LENGTH)


def constant(name: str, value: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))


def looping() -> list[onnx.NodeProto]:
    """What the network is given, after 2⁶² rounds."""
    same = [helper.make_node("Identity", [name], [f"{name} again"]) for name in ("go on", "value")]
    round_, go_on, value = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("round", TensorProto.INT64, []), ("go on", TensorProto.BOOL, []), ("value", TensorProto.FLOAT, None),
        )
    )  # fmt: skip
    after = [
        helper.make_tensor_value_info("go on again", TensorProto.BOOL, []),
        helper.make_tensor_value_info("value again", TensorProto.FLOAT, None),
    ]
    body = helper.make_graph(same, "body", [round_, go_on, value], after)
    loop = helper.make_node("Loop", ["rounds", "always", "prepared"], ["prepared after"], body=body)
    return [constant("rounds", np.int64(2**62)), constant("always", True), loop]


def expanding() -> list[onnx.NodeProto]:
    """What the network is given, and nothing of two gibibytes."""
    return [
        helper.make_node("ReduceSum", ["prepared"], ["sum of all"], keepdims=0), constant("many", np.array([2**29])),
        helper.make_node("Expand", ["sum of all", "many"], ["two gibibytes"]),
        helper.make_node("ReduceMin", ["two gibibytes"], ["least of all"], keepdims=0),
        constant("nothing", np.float32(0)), helper.make_node("Mul", ["least of all", "nothing"], ["still nothing"]),
        helper.make_node("Add", ["prepared", "still nothing"], ["prepared after"]),
    ]  # fmt: skip


def hostile(path: Path, first: Callable[[], list[onnx.NodeProto]]) -> Path:
    """An honest model that does this between its input and its network."""
    model = onnx.load(export_onnx(made_model(), path))
    nodes = list(model.graph.node)
    behind = 1 + max(number for number, node in enumerate(nodes) if "prepared" in node.output)
    for node in nodes:
        node.input[:] = ["prepared after" if name == "prepared" else name for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(nodes[:behind] + first() + nodes[behind:])
    onnx.save(model, path)
    return path


def test_a_graph_without_end_is_refused_in_its_time_and_is_not_tried_for_ever(tmp_path):
    model = load_onnx(hostile(tmp_path / "loop.onnx", looping), 1, seconds=0.5)
    begun = time.monotonic()
    for _ in range(20):
        with pytest.raises(InputError, match=r"loop\.onnx"):
            model.predict(WINDOWS)
    assert time.monotonic() - begun < 8


def test_a_graph_that_grows_is_refused_and_this_process_does_not_grow(tmp_path):
    model = load_onnx(hostile(tmp_path / "grow.onnx", expanding), 1)
    with pytest.raises(InputError, match=r"grow\.onnx"):
        model.predict(WINDOWS)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1.5e6  # kB


def test_one_death_is_forgiven_and_the_process_ends_with_the_model(tmp_path):
    model = load_onnx(export_onnx(made_model(), tmp_path / "model.onnx"), 1)
    (session,) = model.graph._idle.queue
    expected = model.predict(WINDOWS)
    os.kill(session.child.process.pid, signal.SIGKILL)
    with pytest.raises(InputError, match=r"model\.onnx"):
        model.predict(WINDOWS)
    assert np.array_equal(model.predict(WINDOWS), expected)
    (session,) = model.graph._idle.queue
    child = session.child.process.pid
    del model, session
    assert not Path(f"/proc/{child}").exists()


def test_a_graph_in_this_process_gives_the_same(tmp_path, monkeypatch):
    path = export_onnx(made_model(), tmp_path / "model.onnx")
    many = noise(40 * LENGTH).reshape(40, 1, LENGTH)
    apart = load_onnx(path, 1).predict(many)
    monkeypatch.setattr(graphs.sys, "platform", "win32")
    assert np.array_equal(load_onnx(path, 1).predict(many), apart)


def test_ctrl_c_ends_a_prediction_that_loops_and_a_served_one_says_so_and_stops(tmp_path):
    path = hostile(tmp_path / "loop.onnx", looping)
    (tmp_path / "a.wav").write_bytes(as_wav(noise(4 * LENGTH)))
    process = start("predict", path, tmp_path / "a.wav", errors=tmp_path / "errors")
    time.sleep(3)
    os.kill(process.pid, signal.SIGINT)
    process.join(10)
    assert process.exitcode == 130
    server = Server(tmp_path, path, "--timeout", 2)
    with ThreadPoolExecutor(1) as elsewhere:
        asked = elsewhere.submit(server.upload, "a.wav", as_wav(noise(4 * LENGTH)), rate=RATE)
        server.until(1)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)  # while it loops
        assert asked.result().status_code in (408, 422)
        assert server.stop(ask=False) == 0
    assert time.monotonic() - begun < 12


def test_a_model_that_cannot_be_run_is_no_alarm(tmp_path):
    (tmp_path / "a.wav").write_bytes(as_wav(noise(4 * LENGTH)))
    found = bearcat("predict", hostile(tmp_path / "grow.onnx", expanding), tmp_path / "a.wav")
    assert found.returncode == 2
    assert "grow.onnx" in found.stderr
