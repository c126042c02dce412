"""Tracking, checked by reading the event files back with TensorBoard's own reader."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bearcat.errors import InputError
from bearcat.runs.record import find_tracker
from tests.commands import ended


def read(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert len(set(steps)) == len(steps), "no epoch is there twice"
        found[tag] = {event.step: event.value for event in events.Scalars(tag)}
    return found


def kept(history: list[dict[str, float]]) -> dict[str, dict[int, float]]:
    """What should be read back: float32, without nan."""
    names = {name for numbers in history for name in numbers}
    every = {
        name: {
            epoch: float(np.float32(numbers[name]))
            for epoch, numbers in enumerate(history)
            if name in numbers and not math.isnan(numbers[name])
        }
        for name in names
    }
    return {name: steps for name, steps in every.items() if steps}


def made_history(epochs: int, seed: int = 0) -> list[dict[str, float]]:
    random = np.random.default_rng(seed)
    return [
        {
            "loss_supervised": random.uniform(0, 2),
            "temperature": math.nan if epoch < 3 else random.uniform(1, 5),
            "threshold:inner race": random.uniform(0, 1),
            "never": math.nan,
        }
        for epoch in range(epochs)
    ]


def test_every_number_is_read_back_and_nan_is_not_there(tmp_path: Path):
    history = made_history(12)
    tracker = find_tracker("tensorboard")(tmp_path / "deep" / "track")
    for epoch, numbers in enumerate(history):
        tracker.epoch(epoch, numbers)
    tracker.close()
    tracker.close()
    found = read(tmp_path / "deep" / "track")
    assert found == kept(history)
    assert min(found["temperature"]) == 3
    assert "never" not in found


def test_an_epoch_can_be_read_before_the_tracker_is_closed(tmp_path: Path):
    tracker = find_tracker("tensorboard")(tmp_path)
    tracker.epoch(0, {"loss": 0.5})
    assert read(tmp_path) == {"loss": {0: 0.5}}
    tracker.close()


def test_a_resumed_training_goes_on_and_repeats_nothing(tmp_path: Path):
    first, second = made_history(8, 1), made_history(10, 2)
    before = find_tracker("tensorboard")(tmp_path)
    for epoch in range(8):
        before.epoch(epoch, first[epoch])
    before.close()
    after = find_tracker("tensorboard")(tmp_path)
    for epoch in range(5, 10):  # the checkpoint was of epoch 5
        after.epoch(epoch, second[epoch])
    after.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert read(tmp_path) == kept(first[:5] + second[5:])


def track_and_die(folder: Path) -> None:
    tracker = find_tracker("tensorboard")(folder)
    for epoch in range(3):
        tracker.epoch(epoch, {"loss": float(epoch)})
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_resumed_training_keeps_what_a_killed_one_had_written(tmp_path: Path):
    assert ended(track_and_die, tmp_path) == -signal.SIGKILL
    tracker = find_tracker("tensorboard")(tmp_path)
    tracker.epoch(3, {"loss": 3.0})
    tracker.close()
    assert read(tmp_path) == {"loss": {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}}


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path: Path):
    with pytest.raises(InputError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        find_tracker("tensorbord")


def test_a_missing_package_is_answered_with_its_pip_command(tmp_path: Path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)  # which would import it
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'bearcat\[track\]'"):
        find_tracker("tensorboard")(tmp_path)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file.*cannot be written"):
        find_tracker("tensorboard")(tmp_path / "file" / "track")


def fill_the_disk(folder: Path) -> None:
    """In a process of its own, whose writing thread dies. The writer appends by name: there now lies a full device."""
    tracker = find_tracker("tensorboard")(folder)
    tracker.epoch(0, {"loss": 1.0})
    (file,) = folder.iterdir()
    file.unlink()
    file.symlink_to("/dev/full")
    try:
        tracker.epoch(1, {"loss": 1.0})
        tracker.close()
    except InputError as error:
        os._exit(0 if "No space left" in str(error) else 1)
    os._exit(2)


def test_a_full_disk_is_one_sentence(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    assert ended(fill_the_disk, tmp_path) == 0
