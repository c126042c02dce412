"""The fused kernels against the plain layers: values, gradients, statistics; odd sizes, one run, smaller parts.

They need Triton. Without a GPU its interpreter runs them on the CPU, in float32: it cannot multiply bfloat16.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bearcat.cat import state
from bearcat.cat.algorithm import Run, train
from bearcat.cat.recipes import RECIPES
from bearcat.fast import stacked
from tests.test_native import CASES, assert_alike, assert_same_dropout, far, made
from tests.test_train import RAGGED, interrupted, toy

GPU = torch.cuda.is_available()
INTERPRET = "TRITON_INTERPRET", "0" if GPU else "1"
with pytest.MonkeyPatch.context() as patch:  # Triton reads it when it is imported, and again when a kernel runs
    patch.setenv(*INTERPRET)
    pytest.importorskip("triton")
    import bearcat.fast.fused  # noqa: F401
DEVICE = torch.device("cuda" if GPU else "cpu")
on_gpu = pytest.mark.skipif(not GPU, reason="recorded steps need a GPU")
# Allowed distance of values, and of gradients. Where a value near a maximum is rounded, another place wins it and its
# gradient goes elsewhere: with torch's own layers rounded like this, gradients on noise are 6–9 % (TF32) and 16–32 %
# (bfloat16) away from exact ones, values 0.07 and 0.7 %. That the kernels are right is what float32 shows.
TOLERANCE = {"float32": (1e-5, 1e-4), "tf32": (3e-3, 0.2), "bfloat16": (2e-2, 0.6)}


@pytest.fixture(autouse=True)
def _on_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*INTERPRET)
    monkeypatch.setitem(stacked.DEVICES, "triton", DEVICE.type)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"] if GPU else ["float32"])
@pytest.mark.parametrize(("runs", "parts", "channels", "length"), CASES)
def test_fused_blocks_are_the_plain_ones_forward_and_backward(runs, parts, channels, length, precision):
    plain, fused = made(runs, channels, length, path="triton", precision=precision, device=DEVICE)
    windows = torch.randn(runs, sum(parts), channels, length, device=DEVICE)
    assert_alike(plain.double(), fused, windows, parts, *TOLERANCE[precision])


@pytest.mark.parametrize("probability", [0.3, 0.5])
def test_fused_dropout_zeroes_the_units_the_plain_one_zeroes(probability):
    assert_same_dropout("triton", probability, DEVICE)


@on_gpu
def test_an_interrupted_training_goes_on_on_a_gpu(tmp_path):
    """To the same bits: recorded and unrecorded steps are the same kernels."""
    recipe = replace(RECIPES["CAT*-Temperature"], schedule=replace(RAGGED, epochs=6))
    runs = [Run(recipe, toy(seed, 80, 50), seed) for seed in range(2)]
    (resumed, _), whole = interrupted(runs, 3, tmp_path / "checkpoint.safetensors", DEVICE), train(runs, DEVICE)
    for name, value in whole.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name


@on_gpu
@pytest.mark.parametrize("path", ["plain", "triton"])
def test_training_on_a_gpu_follows_training_on_a_cpu(path, monkeypatch):
    """With dropout, recorded steps, all phases, and last batches of the source and of the target that are smaller."""
    schedule = replace(RAGGED, epochs=6, rate=1e-4)
    recipe = replace(RECIPES["CAT*-Temperature"], schedule=schedule, precision="float32")
    runs = [Run(recipe, toy(seed, windows=66, target=50), seed) for seed in range(3)]
    monkeypatch.setattr(state, "fast_path", lambda device: "plain" if device.type == "cpu" else path)
    slow, fast = (train(runs, torch.device(kind)) for kind in ("cpu", "cuda"))
    assert (set(fast.kernels.values()), fast.precision, set(slow.kernels.values())) == ({path}, "float32", {"plain"})
    for name in ("loss_supervised", "loss_alignment", "loss_confusion"):
        torch.testing.assert_close(fast.history[name], slow.history[name], rtol=5e-3, atol=5e-3, equal_nan=True)
    for name, value in slow.student.state_dict().items():
        # Biases of normalisation begin at 0 and have gradients near rounding, of which Adam makes whole steps: float32
        # and float64 on a CPU are 0.023 apart in them, and less than 0.0005 in all others.
        limit = 0.05 if name.startswith("encoder.norms") and name.endswith(".bias") else 0.005
        assert far(fast.student.state_dict()[name].cpu(), value) < limit, name


@on_gpu
def test_recorded_steps_use_the_calibration_that_begins_after_they_were_first_recorded():
    """Temperatures from 30 on leave no label sure enough; before T_cal many are, on a GPU as on a CPU."""
    schedule = replace(RAGGED, epochs=8, calibrate_from=5)
    recipe = replace(RECIPES["CAT-Temperature"], schedule=schedule, calibration="Temperature:bounds=30,100")
    run = Run(recipe.change("labels", threshold="fixed", tau=0.4), toy(0, 80, 80), 0)
    for device in (torch.device("cpu"), DEVICE):
        share = train([run], device).history["pseudo_label_share"][:, 0]
        assert share[4] > 0.3, device
        assert (share[5:] == 0).all(), device
