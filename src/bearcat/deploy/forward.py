"""Forward passes of the package's own encoders in numpy, for one run: a diagnosis starts without torch.

FORWARD has a row for those of ENCODERS that it knows; the others need torch. Weights are named as a network's state.

>>> logits, features = forward("dense:widths=256,128", weights, windows)         # (window, channel, point)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = Mapping[str, Array]  # without the axis of runs

BATCH = 16  # windows at once: what lies between two layers stays in a core's cache
POOLED = 4  # points left of the time axis
EPSILON = 1e-5  # of a variance in a normalisation


def forward(encoder: str, weights: Weights, windows: Array) -> tuple[Array, Array]:
    """Logits (window, class) and features (window, feature) of prepared windows (window, channel, point)."""
    if "scaling.mean" in weights:
        windows = (windows - weights["scaling.mean"]) * weights["scaling.factor"]
    find = FORWARD[encoder.partition(":")[0]]
    starts = range(0, max(len(windows), 1), BATCH)
    features = np.concatenate([find(weights, windows[start : start + BATCH]) for start in starts])
    return features @ weights["head.weight"].T + weights["head.bias"], features


def _dense(weights: Weights, windows: Array) -> Array:
    """Dense layers with ReLU, as many as there are."""
    values, number = windows.reshape(len(windows), math.prod(windows.shape[1:])), 0
    while (weight := weights.get(f"encoder.dense.{number}.weight")) is not None:
        values = np.maximum(values @ weight.T + weights[f"encoder.dense.{number}.bias"], 0)
        number += 1
    return values


def _convolved(weights: Weights, windows: Array) -> Array:
    """Four convolutions, a maximum of pairs behind the second and of quarters behind the last, and dense layers."""
    values = np.ascontiguousarray(windows.transpose(0, 2, 1))  # (window, time, channel)
    for number in range(4):
        factors, bias, norm, shift, mean, variance = (
            weights[f"encoder.{name}"]
            for name in (
                f"convolutions.{number}.weight", f"convolutions.{number}.bias", f"norms.{number}.weight",
                f"norms.{number}.bias", f"norms.{number}.running_mean", f"norms.{number}.running_var",
            )
        )  # fmt: skip
        scale = norm / np.sqrt(variance + np.float32(EPSILON))
        factors = (factors * scale[:, None, None]).transpose(2, 1, 0)  # (tap, channel, output)
        taps, length = len(factors), values.shape[1] - len(factors) + 1
        if values.shape[2] == 1:  # all taps in one product
            seen = np.lib.stride_tricks.sliding_window_view(values[..., 0], taps, axis=1)
            values = np.ascontiguousarray(seen) @ factors[:, 0]
        else:
            parts = (values[:, tap : tap + length] @ factors[tap] for tap in range(1, taps))
            values = sum(parts, start=values[:, :length] @ factors[0])
        values += (bias - mean) * scale + shift
        np.maximum(values, 0, out=values)
        if number == 1:
            even = values[:, : values.shape[1] // 2 * 2]
            values = np.maximum(even[:, ::2], even[:, 1::2])
    time = values.shape[1]
    edges = [(part * time // POOLED, -(-(part + 1) * time // POOLED)) for part in range(POOLED)]
    pooled = np.stack([values[:, start:stop].max(axis=1) for start, stop in edges], axis=-1)
    return _dense(weights, pooled)


FORWARD: dict[str, Callable[[Weights, Array], Array]] = {"cnn": _convolved, "dense": _dense, "linear": _dense}
