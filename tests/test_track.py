"""Tracking, checked by reading the event files back with TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bearcat.errors import InputError
from bearcat.runs.track import open_tracker


def read(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        steps = [one.step for one in events.Scalars(tag)]
        assert len(set(steps)) == len(steps), "no epoch is there twice"
        found[tag] = {one.step: one.value for one in events.Scalars(tag)}
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
    tracker = open_tracker("tensorboard", tmp_path / "deep" / "track")
    for epoch, numbers in enumerate(history):
        tracker.epoch(epoch, numbers)
    tracker.close()
    tracker.close()
    found = read(tmp_path / "deep" / "track")
    assert found == kept(history)
    assert min(found["temperature"]) == 3
    assert "never" not in found


def test_an_epoch_can_be_read_before_the_tracker_is_closed(tmp_path: Path):
    tracker = open_tracker("tensorboard", tmp_path)
    tracker.epoch(0, {"loss": 0.5})
    assert read(tmp_path) == {"loss": {0: 0.5}}
    tracker.close()


def test_a_resumed_training_goes_on_and_repeats_nothing(tmp_path: Path):
    first, second = made_history(8, 1), made_history(10, 2)
    before = open_tracker("tensorboard", tmp_path)
    for epoch in range(8):
        before.epoch(epoch, first[epoch])
    before.close()
    after = open_tracker("tensorboard", tmp_path)
    for epoch in range(5, 10):  # the checkpoint was of epoch 5
        after.epoch(epoch, second[epoch])
    after.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert read(tmp_path) == kept(first[:5] + second[5:])


def test_a_resumed_training_keeps_what_a_killed_one_had_told(tmp_path: Path):
    code = (
        "import os, sys; from pathlib import Path; from bearcat.runs.track import open_tracker\n"
        "tracker = open_tracker('tensorboard', Path(sys.argv[1]))\n"
        "for epoch in range(3): tracker.epoch(epoch, {'loss': float(epoch)})\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == -9
    tracker = open_tracker("tensorboard", tmp_path)
    tracker.epoch(3, {"loss": 3.0})
    tracker.close()
    assert read(tmp_path) == {"loss": {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}}


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path: Path):
    with pytest.raises(InputError, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        open_tracker("tensorbord", tmp_path)


def test_a_missing_package_is_answered_with_its_pip_command(tmp_path: Path):
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from pathlib import Path; from bearcat.errors import InputError; from bearcat.runs.track import open_tracker\n"
        "try: open_tracker('tensorboard', Path(sys.argv[1]))\n"
        "except InputError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True).stdout
    assert "pip install 'bearcat[track]'" in told


def test_a_folder_that_cannot_be_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file.*cannot be written"):
        open_tracker("tensorboard", tmp_path / "file" / "track")


def test_a_full_disk_is_told():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    # The writer appends by name; under that name now lies the device that is always full.
    code = (
        "import sys; from pathlib import Path; from bearcat.errors import InputError\n"
        "import tempfile; from bearcat.runs.track import open_tracker\n"
        "folder = tempfile.mkdtemp(); tracker = open_tracker('tensorboard', Path(folder))\n"
        "file = next(Path(folder).iterdir()); file.unlink(); file.symlink_to('/dev/full')\n"
        "try:\n"
        "    for epoch in range(3): tracker.epoch(epoch, {'loss': 1.0})\n"
        "    tracker.close()\n"
        "except InputError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert "No space left" in told.stdout, told.stderr[-500:]


def test_nothing_heavy_is_loaded_before_a_tracker_is_opened():
    code = "import sys, bearcat.runs.track; assert not {'tensorboard', 'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
