"""Mutated recordings, and metadata of ONNX files with wrong values."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from bearcat.data.isolated import Readers
from bearcat.deploy.model import export_onnx
from bearcat.deploy.predictor import ONNX, OnnxModel, load_onnx
from bearcat.errors import InputError
from tests.mutations import honest_files, mutated
from tests.test_artefact import made_model
from tests.test_hostile import WRONG


def test_mutations_of_every_format_are_samples_or_a_sentence(tmp_path):
    chance, files = random.Random(0), honest_files()
    readers, others, sentences = Readers(1, 2**22), list(files.values()), []
    for name in list(files) * 15:
        path = tmp_path / name
        path.write_bytes(mutated(files[name], chance, others))
        try:
            with readers.open_stream(path, None, name, time.monotonic() + 60) as stream:
                assert all(np.isfinite(block).all() for block in stream.blocks), name
        except InputError as error:
            sentences.append((name, str(error)))
    assert [sentence for name, sentence in sentences if not sentence.startswith(name) or len(sentence) > 1000] == []


def test_metadata_of_an_onnx_file_are_checked_the_same_way(tmp_path):
    export_onnx(made_model(), tmp_path / "model.onnx")
    graph = load_onnx(tmp_path / "model.onnx").graph
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
