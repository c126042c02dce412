"""A speed that varies within a recording: followed from the signal, and the signal resampled in angle by it.

Short spectra show where a comb of lines goes (the shaft's or, in the envelope, the bearing's), the best path through
them is the track, and the phase that its strongest line has left corrects the track (Coats and Randall 2014).

>>> if (track := follow_speed(signal, 51_200, near=1200)) is not None:
...     signal, rate = resample_in_angle(signal, 51_200, track)  # the shaft turns evenly, at the mean of the track
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.recording import Floats, stretch
from bearcat.diagnosis.combs import CEILING, FAINT, SECONDS, SUPPLY, TURNS, scaled, shaft_lines, shaft_scores, slow_part
from bearcat.diagnosis.physics import FAULTS
from bearcat.diagnosis.spectra import Doubles, hann
from bearcat.errors import InputError

LONGEST = 60.0  # seconds that are followed, which bounds the memory; longer ones are to be cut
FOLLOWED = np.arange(1.0, 5.0)  # lines of the shaft by which its speed is followed
RANGE, STEADY = 0.15, 0.02  # relative half-range of a speed that is followed, and below which it is steady
EVEN = 17.0  # score of a comb whose lines are sharp: that shaft turns evenly
WINDOW = 8  # turns in a short spectrum, which follow each other by half a turn
PACE, MOVES = 0.005, (-2, -1, 0, 1, 2)  # relative step of the speeds tried, and how many a speed may change by at once
GAIN = 6.0  # dB by which other lines must rise when the signal is resampled by the track
CLEAR = 14.0  # dB of other lines that show a steady speed
FAR = 100.0  # dB for a mean speed e times another: 1 dB a percent


def follow_speed(signal: Floats, rate: float, near: float, orders: Mapping[str, float] | None = None) -> Doubles | None:
    """The speed in rpm over a recording (time,), within RANGE of `near`: from the shaft's lines or, in the envelope,
    from the bearing's, where its orders are given.

    None where it is steady to STEADY, and where it cannot be followed: lines that did not help to follow the speed
    must stand out better once the signal is resampled by it.
    """
    shaft = near / 60
    if signal.size > LONGEST * rate or signal.size / rate * shaft < 2 * TURNS or not signal.min() < signal.max():
        return None
    if shaft_scores(shaft_lines(signal[: int(SECONDS * rate)], rate))[0].max() >= EVEN:
        return None  # some shaft has sharp lines, so it turns evenly
    combs = [(False, FOLLOWED)]
    if orders is not None:
        combs += [(True, number * orders[name] * np.arange(1.0, 4.0)) for name, number, _ in FAULTS.values()]
    still, envelope = _still_parts(signal, rate)
    best, found = -np.inf, None
    for struck, teeth in combs:
        highest = 1.2 * (1 + RANGE) * teeth[-1] * shaft
        if highest < rate / 4:
            slow, own_rate = slow_part(envelope if struck else still, rate, highest)
            track, level, gain = _followed(slow, own_rate, shaft, teeth)
            half = half_range(track)
            if half < STEADY and level > CLEAR:
                return None  # steady by lines that are clear
            # Lines of one fault are those of another at another speed: a mean far from `near` counts against a comb.
            score = level - FAR * abs(np.log(track.mean() / shaft))
            if min(gain - GAIN, level - FAINT, half - STEADY) > 0 and score > best:
                best, times = score, np.arange(signal.size) / rate
                found = 60 * np.interp(times, np.arange(track.size) / own_rate, track)
    return found


def half_range(track: Doubles) -> float:
    """Relative, without the 2 % of the track at either end of its values."""
    low, high = np.quantile(track, [0.02, 0.98])
    return float((high - low) / 2 / track.mean())


def _followed(slow: Floats, rate: float, shaft: float, teeth: Doubles) -> tuple[Doubles, float, float]:
    """The shaft's frequency (time,) by the strongest of some lines; the level of the second best of the others, as
    resampled by it, and by how many dB that is higher than at an even speed.
    """
    ridge = stretch(_ridge(slow, rate, shaft, teeth).astype(np.float32), slow.size).astype(np.float64)
    leader = int(_teeth(slow, rate, ridge, teeth).argmax())
    track = ridge
    for width in (0.06, 0.03):  # of the leader's order: what is left of the error turns its phase
        track = np.clip(_by_phase(slow, rate, track, float(teeth[leader]), width), 0.97 * ridge, 1.03 * ridge)
    levels = np.delete(_teeth(slow, rate, track, teeth), leader)
    gains = levels - np.delete(_teeth(slow, rate, np.full_like(track, track.mean()), teeth), leader)
    second = int(np.argsort(levels)[-2])  # of the others, so that two lines speak for the track beside the leader
    return track, float(levels[second]), float(gains[second])


def _still_parts(signal: Floats, rate: float) -> tuple[Floats, Floats]:
    """The signal without lines of the supply, which stand still while the shaft's move; its squared envelope, all of
    its spectrum set to magnitude 1.
    """
    from scipy import fft

    size = int(fft.next_fast_len(signal.size, real=True))
    spectrum = fft.rfft(scaled(signal), size)
    analytic = np.zeros(size, dtype=np.complex64)
    analytic[: spectrum.size] = spectrum / np.maximum(np.abs(spectrum), 1e-30)
    for hertz in (multiple * supply for supply in SUPPLY for multiple in range(1, 11) if multiple * supply < rate / 2):
        reach = max(1.5 / signal.size * rate, 0.002 * hertz)
        first, last = (int(edge / rate * size) for edge in (hertz - reach, hertz + reach))
        beside = np.median(np.abs(spectrum[max(0, 2 * first - last - 1) : 2 * last - first + 2]))
        line = spectrum[first : last + 2]
        line *= np.minimum(1, beside / np.maximum(np.abs(line), 1e-30))
    envelope = np.abs(fft.ifft(analytic)[: signal.size]) ** 2
    return fft.irfft(spectrum, size)[: signal.size].astype(np.float32), envelope.astype(np.float32)


def _ridge(slow: Floats, rate: float, shaft: float, teeth: Doubles) -> Doubles:
    """The shaft's frequency in Hz (frame,) along the path of the highest lines through spectra of WINDOW turns."""
    from scipy import fft

    length, hop = int(WINDOW * rate / shaft), max(1, int(rate / shaft / 2))
    padded = np.pad(slow, length // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, length)[::hop] * hann(length)
    size = int(fft.next_fast_len(4 * length, real=True))
    power = np.abs(fft.rfft(frames, size)) ** 2
    levels = 10 * np.log10(power / np.median(power, axis=1, keepdims=True) + 1e-3)
    speeds = shaft * np.exp(np.arange(np.log(1 - RANGE), np.log(1 + RANGE), PACE))
    places = np.round(speeds * teeth[:, None] * size / rate).astype(np.int64)
    scores = np.clip(levels[:, places], 0.0, CEILING).mean(axis=1)  # (frame, speed)
    best, came = scores[0], np.zeros(scores.shape, dtype=np.int64)
    reach = MOVES[-1]
    beside = np.full(speeds.size + 2 * reach, -1e9)
    moves = np.lib.stride_tricks.sliding_window_view(beside, speeds.size)[::-1]  # a row for each of MOVES
    for number, row in enumerate(scores[1:], 1):
        beside[reach:-reach] = best
        came[number] = moves.argmax(axis=0)
        best = moves.max(axis=0) + row
    path = [int(best.argmax())]
    for number in range(len(scores) - 1, 0, -1):
        path.append(path[-1] - MOVES[came[number, path[-1]]])
    return np.asarray(speeds[path[::-1]])


def _teeth(slow: Floats, rate: float, track: Doubles, teeth: Doubles) -> Doubles:
    """Levels in dB above background of lines at orders, once the angle is even by a track (time,) in Hz."""
    from scipy import fft

    even, _ = resample_in_angle(slow, rate, track)
    power = np.abs(fft.rfft(even * hann(even.size), 2 * even.size)) ** 2
    bins, levels = 2 * even.size / rate * float(track.mean()), []
    for tooth in teeth:
        near, around = (power[int((tooth - side) * bins) : int((tooth + side) * bins) + 2] for side in (0.02, 0.4))
        levels.append(10 * np.log10(near.max() / max(float(np.median(around)), 1e-30)))
    return np.array(levels)


def _by_phase(slow: Floats, rate: float, track: Doubles, tooth: float, width: float) -> Doubles:
    """The track corrected by the phase that one line has left after resampling (Coats and Randall 2014)."""
    from scipy import fft

    even, _ = resample_in_angle(slow, rate, track)
    mean, spectrum = float(track.mean()), fft.fft(even)
    orders = fft.fftfreq(even.size, mean / rate)
    band = np.abs(orders - tooth) < width * tooth
    turned = np.arange(even.size) * mean / rate
    left = np.unwrap(np.angle(fft.ifft(np.where(band, spectrum, 0)) * np.exp(-2j * np.pi * tooth * turned)))
    turns = np.cumsum(track) / rate
    error = np.interp(turns, turned, left / (2 * np.pi * tooth))
    return np.asarray(np.clip(np.gradient(turns + error) * rate, 0.5 * mean, 2 * mean))


def resample_in_angle(signal: Floats, rate: float, speed: NDArray[np.floating[Any]]) -> tuple[Floats, float]:
    """The signal as if its shaft had turned evenly at the mean of `speed`, and its rate, which stays.

    `speed` may have any unit and any number of values, which are evenly spread over the recording.
    """
    from scipy.ndimage import map_coordinates

    if speed.size < 2 or not (np.isfinite(speed).all() and speed.min() > 0):
        raise InputError("the speed must be positive numbers, two at least", "rpm")
    each = speed if speed.size == signal.size else stretch(speed.astype(np.float32), signal.size)
    turns = np.concatenate([[0.0], np.cumsum((each[1:] + each[:-1]) / 2, dtype=np.float64)])
    places = np.interp(np.linspace(0, turns[-1], signal.size), turns, np.arange(signal.size, dtype=np.float64))
    return map_coordinates(signal, places[None], order=3, mode="nearest").astype(np.float32), rate
