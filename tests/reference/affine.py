"""The way back through the encoder's last block without the gradient of its convolution's output.

The block is y = convolution of x (three taps), normalisation by the batch's statistics, ReLU, the largest of each of four
parts. A gradient comes in at the maxima only; normalisation spreads it, dy = scale·dz + c₀ + c₁·(y − mean). So outside the
maxima dy is affine in y, which is linear in x: the weights' gradient needs the products of x with itself at lags 0, 1
and 2, and that of x is five taps from x to x. Here row by row, for one domain, in whatever precision x has.

    of_weight, of_x = gradients(x, weight, gamma, beta, gradient)
"""

from __future__ import annotations

import numpy as np

TAPS, PARTS, EPSILON = 3, 4, 1e-5


def gradients(
    x: np.ndarray, weight: np.ndarray, gamma: np.ndarray, beta: np.ndarray, gradient: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """x (window, time, input), weight (tap, input, output), gradient (window, output, part): of weight and of x."""
    windows, length, inputs = x.shape
    outputs, time = len(gamma), length - TAPS + 1
    centred = x - x.mean(axis=(0, 1))  # what is added to x is taken away again by normalisation
    y = sum(centred[:, tap : tap + time] @ weight[tap] for tap in range(TAPS))  # (window, time, output)
    mean = y.mean(axis=(0, 1))  # all but 0: the first and last rows are seen by fewer taps
    deviation = 1 / np.sqrt(((y - mean) ** 2).mean(axis=(0, 1)) + EPSILON)
    scale = gamma * deviation
    z = (y - mean) * scale + beta

    maxima = []  # (window, time, output, dz)
    for window in range(windows):
        for output in range(outputs):
            for part in range(PARTS):
                first, end = part * time // PARTS, -((part + 1) * time // -PARTS)
                place = first + int(z[window, first:end, output].argmax())
                if z[window, place, output] > 0:
                    maxima.append((window, place, output, gradient[window, output, part]))

    of_beta, of_gamma = np.zeros_like(gamma), np.zeros_like(gamma)
    for window, place, output, dz in maxima:
        of_beta[output] += dz
        of_gamma[output] += dz * (y[window, place, output] - mean[output]) * deviation[output]
    c1 = -scale * deviation * of_gamma / (windows * time)
    offset = -scale * of_beta / (windows * time) - c1 * mean  # dy = scale·dz + offset + c₁·y

    # Products of x with itself, the tap before the lag: (tap, input, tap, input).
    lagged = np.zeros((TAPS, inputs, TAPS, inputs))
    for tap in range(TAPS):
        for other_tap in range(TAPS):
            lagged[tap, :, other_tap] = np.einsum(
                "wti,wtj->ij", centred[:, tap : tap + time], centred[:, other_tap : other_tap + time]
            )
    of_weight = np.einsum("kilj,ljo->kio", lagged, weight) * c1
    for tap in range(TAPS):
        of_weight[tap] += np.outer(centred[:, tap : tap + time].sum(axis=(0, 1)), offset)

    # From row t+k of x by way of y to row t+l: (tap, input, tap, input).
    composed = np.einsum("kio,o,ljo->kilj", weight, c1, weight)
    of_x = np.zeros_like(x)
    for at in range(length):
        for tap in range(TAPS):
            if 0 <= at - tap < time:
                around = centred[:, at - tap : at - tap + TAPS]
                of_x[:, at] += np.einsum("wki,kij->wj", around, composed[:, :, tap]) + weight[tap] @ offset

    for window, place, output, dz in maxima:
        of_weight[:, :, output] += scale[output] * dz * centred[window, place : place + TAPS]
        of_x[window, place : place + TAPS] += scale[output] * dz * weight[:, :, output]
    return of_weight, of_x
