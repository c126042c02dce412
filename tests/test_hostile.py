"""Nothing a file can do (docs/security.md): each attack is built here, and meets a sentence.

Hostile recordings are in test_bad_files.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bearcat.bench.grid import read_grid
from bearcat.data.formats import read_signals
from bearcat.data.recording import resample
from bearcat.deploy.model import load_model
from bearcat.deploy.opened import at_rate_of
from bearcat.errors import InputError, suggest
from bearcat.report import read_result
from bearcat.storage import digest_json
from tests.conftest import make_recording
from tests.test_artefact import made_model, save_model
from tests.test_serve import LENGTH, RATE, as_wav, noise


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "model", made_model())
    return folder


def test_resampling_has_bounds_before_anything_is_allocated():
    model = made_model()
    for rate in (1e-3, 100, 2e7):
        with pytest.raises(InputError, match="check the rate") as raised:
            at_rate_of(model, make_recording(rate=None), rate)
        assert raised.value.field == "rate"
        with pytest.raises(InputError, match="check the rate"):
            resample(make_recording(rate=rate), RATE)


def test_a_device_is_no_recording_and_a_pipe_no_model(tmp_path):
    with pytest.raises(InputError):
        read_signals(Path("/dev/zero"))
    (tmp_path / "weights.safetensors").write_bytes(b"")
    os.mkfifo(tmp_path / "model.json")
    with pytest.raises(InputError, match="regular"):
        load_model(tmp_path)


def test_a_wrong_name_is_compared_with_few_and_short_ones():
    assert len(suggest("a" * 10**6, (f"{number}" * 10**3 for number in range(10**5)))) < 10_000
    assert suggest("pmup", ["fan", "pump"]) == "; did you mean 'pump'?"


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
        method = f"[[method]]\nname = 'wide'\nmethod = 'DANN'\nset.encoder = {setting}\n"
        (tmp_path / "wide.toml").write_text(f"data = 'simulated'\ndomains = ['0', '1']\nseeds = 1\n{method}")
        status, _, said = command("bench", "run", tmp_path / "wide.toml", "--store", tmp_path / "store")
        assert (status, "widths" in said) == (2, True)


WRONG = {
    "classes": ([1, 2], [["a"]]), "channels": (0, True, None),
    "preparation": (None, [], 3), "preparation.length": ("x", 1, 2**40, 2.5), "preparation.stride": (0, -3),
    "preparation.rate": ("fast", -1, 0, [1]), "preparation.input": (None, 3, ["time"]), "rate": ({}, True),
    "channel": (3, ["x"]), "bearing": ("6205", {"balls": 9}, []),
    "rpm": ("fast", [900]), "encoder": (None, 7, "dense:widths=1-99999999999"),
    "pooled_temperature": (None, [1]), "sha256": (None, 3),
    "decision": (None, "use", {}, {"action": "sell", "expected": 1.0, "interval": None, "reasons": []},
                 {"action": "use", "expected": 1.0, "interval": [2], "reasons": []}),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WRONG))
def test_metadata_of_a_wrong_type_are_refused_by_name(models, tmp_path, name):
    """Sealed by whoever changed it, as an attacker would."""
    original = json.loads((models / "model" / "model.json").read_text())
    (tmp_path / "weights.safetensors").write_bytes((models / "model" / "weights.safetensors").read_bytes())
    for wrong in (*WRONG[name], *([] if "." in name else [...])):
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


def test_only_an_alarm_has_status_1(models, tmp_path, command, monkeypatch):
    (tmp_path / "token.npy").write_bytes(
        b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '''<f4".ljust(117) + b"\n" + bytes(64)
    )
    silent = bytearray(as_wav(noise(4 * LENGTH)))
    silent[22:24] = bytes(2)  # channels
    (tmp_path / "silent.wav").write_bytes(silent)
    for name in ("token.npy", "silent.wav"):
        status, _, said = command("predict", models / "model", tmp_path / name, "--rate", RATE)
        assert (status, name in said, "Traceback" in said) == (2, True, False)

    monkeypatch.setattr("bearcat.deploy.opened.open_model", None)  # a bug of ours: what is called is no function
    status, _, said = command("predict", models / "model", tmp_path / "token.npy")
    assert (status, "report" in said) == (70, True)
