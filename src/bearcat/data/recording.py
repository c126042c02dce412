"""Recordings and the windows cut from them.

Windows are views into recordings: no sample is copied until they are standardised, and every array is float32.

>>> inputs = standardise(spectrum(cut(recording, length=1024)))       # frequency input (docs/protocol.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bearcat.data.bearing import Bearing
from bearcat.data.channels import Declared
from bearcat.errors import RANGES, InputError, check_range
from bearcat.findings import Finding

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
BANDS = 32  # of a spectral shape: wide enough for one window to say how much is in each
RATIOS = (1 / 1000, 100)  # of the rate wanted to a recording's own; others are mistakes, and could take any memory
SEGMENT = 4096  # samples, of those whose statistics are averaged
LEAST_SHARE = 1e-6  # of a window's energy; what is less in a band counts as this
SAME, SAME_SPEED = 1e-3, 0.03  # by which two speeds are one, and by which one may be given for the other
MOST_GAPS = 0.01  # share of the samples that may be NaN or infinite
ONE_BEARING = "one bearing"  # the shift of a source with one bearing of a damaged class to other bearings
HEALTHY_NAMES = {"healthy", "normal"}  # a class called so, in any case, is no fault and no alarm


@dataclass(frozen=True, kw_only=True)
class RecordingInfo:
    """Everything known about a recording but its samples."""

    domain: str
    label: str | None = None  # None: unlabelled
    rate: float | None = None  # samples per second; None: the file does not say
    channel: str | None = None  # None: not chosen yet
    origin: str  # the file, as a person would name it inside the dataset's folder
    rpm: float | None = None  # the speed of the shaft; its mean, where it was recorded
    rpm_channel: str | None = None  # the channel of the file that holds the speed in rpm, where there is one
    bearing: Bearing | None = None
    machine: str | None = None
    specimen: str | None = None  # the physical bearing, by a name that no other bearing has; None: not known

    def info(self) -> RecordingInfo:
        """This without the samples."""
        return RecordingInfo(**{field.name: getattr(self, field.name) for field in fields(RecordingInfo)})

    def __post_init__(self) -> None:
        check_range("rate", self.rate, self.origin)
        check_range("rpm", self.rpm, self.origin, "rpm")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording(RecordingInfo):
    """One channel of one measurement.

    >>> Recording(domain="pump-A", origin="monday.wav", signal=np.sin(np.arange(100.0)), rate=12_000).signal.dtype
    dtype('float32')
    """

    signal: Floats  # (time,), finite and not empty
    gaps: int = 0  # samples that were NaN or infinite
    speed: Floats | None = None  # (time,) rpm, where it was recorded with the signal; `rpm` is its mean then
    own_rpm: float | None = None  # as the file states it, whether it counts or not
    declared: Declared = field(default_factory=Declared)  # for the zone of ISO 20816-3

    def __post_init__(self) -> None:
        signal = np.asarray(self.signal)
        if signal.ndim != 1:
            raise InputError(f"{self.origin}: a signal has one axis, not the shape {signal.shape}; pick one channel")
        if signal.size == 0:
            raise InputError(f"{self.origin}: holds no samples; remove the file or record it again")
        with np.errstate(over="ignore"):  # a value beyond float32 becomes Inf and is named below
            signal = np.ascontiguousarray(signal, dtype=np.float32)
        if (gaps := np.flatnonzero(~np.isfinite(signal))).size:
            if gaps.size > MOST_GAPS * signal.size:
                many = f"{gaps.size} of {signal.size} samples are NaN or infinite, the first at sample {gaps[0]}"
                raise InputError(f"{self.origin}: {many}; cut them out or interpolate them")
            good, signal = np.flatnonzero(np.isfinite(signal)), signal.copy()
            signal[gaps] = np.interp(gaps, good, signal[good])
            object.__setattr__(self, "gaps", gaps.size)
        if self.speed is not None:
            if self.speed.shape != signal.shape:
                raise InputError(f"{self.origin}: {self.speed.size} speeds for {signal.size} samples; give as many")
            allowed = RANGES["rpm"]
            if (bad := np.flatnonzero(~((self.speed >= allowed.lowest) & (self.speed <= allowed.highest)))).size:
                wrong = f"the speed must be {allowed.words}, but is {self.speed[bad[0]]:g} at sample {bad[0]}"
                raise InputError(f"{self.origin}: {wrong}; leave that part out with start and stop", "rpm")
            object.__setattr__(self, "rpm", float(np.mean(self.speed, dtype=np.float64)))
        super().__post_init__()
        object.__setattr__(self, "signal", signal)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of one or several recordings, and where each was cut.

    >>> recording = Simulated(seconds=1.0).recording("N15_M07_F10", "inner-1")
    >>> windows = prepare([recording], Preparation(length=1024))
    >>> len(windows), int(windows.start[1]), windows.labels[0]
    (15, 1024, 'inner-1')
    """

    values: Floats  # (window, channel, point)
    recording: Integers  # (window,) an index into `recordings`
    start: Integers  # (window,) in samples
    span: int  # how many samples of the recording a window covers, whatever was made of them since
    recordings: tuple[RecordingInfo, ...]
    shapes: Floats | None = None  # (window, channel · band) `spectral_shape` of the samples; None: not prepared

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: NDArray[np.generic] | slice) -> Windows:
        shapes = None if self.shapes is None else self.shapes[index]
        arrays = self.values[index], self.recording[index], self.start[index]
        return Windows(*arrays, self.span, self.recordings, shapes)

    @property
    def labels(self) -> NDArray[np.object_]:
        """The label of each window (None where its recording has none), shape (window,)."""
        return np.array([recording.label for recording in self.recordings], dtype=object)[self.recording]


def stated_speed(
    origin: str, in_file: float | None, listed: float | None, usual: float | None = None
) -> tuple[float | None, Finding | None]:
    """The stated speed (rpm) that counts, and what a person should know where the file says otherwise.

    `listed`, by a manifest or a folder's name, counts before the one `in_file`, and that before the `usual` one for all
    recordings. InputError if the usual one is far from the file's.
    """
    other = listed or usual
    if in_file is None or not RANGES["rpm"].holds(in_file):
        return other, None if in_file is None else Finding("impossible speed", "remark", {"rpm": in_file})
    if other is None or abs(other / in_file - 1) <= SAME:
        return listed or in_file, None
    if listed:
        return listed, Finding("other speed", "remark", {"own": in_file, "given": listed})
    if abs(other / in_file - 1) > SAME_SPEED:
        differ = f"says that it turns at {in_file:g} rpm, and {other:g} rpm is given"
        raise InputError(f"{origin}: {differ}; leave the speed out, or correct it in a manifest", "rpm")
    return in_file, Finding("own speed counts", "remark", {"own": in_file, "given": other})


def healthy_class(classes: Sequence[str]) -> str | None:
    """The class called healthy or normal, in any case."""
    return next((name for name in classes if name.lower() in HEALTHY_NAMES), None)


def classes_of(source: Iterable[RecordingInfo]) -> tuple[str, ...]:
    """The labels of the source's recordings as they first appear; each must have one."""
    classes: dict[str, None] = {}
    for info in source:
        if info.label is None:
            raise InputError(f"{info.origin}: a source recording needs a label; put it into <domain>/<label>/")
        classes[info.label] = None
    if len(classes) < 2:
        raise InputError(f"the source has only the class '{''.join(classes)}'; a classifier needs at least two")
    return tuple(classes)


def of_recordings(windows: Windows, selection: Sequence[bool]) -> Windows:
    """The windows of the chosen recordings, which are numbered anew."""
    mask = np.asarray(selection, dtype=bool)
    selected = windows[mask[windows.recording]]
    recordings = tuple(info for info, keep in zip(windows.recordings, selection, strict=True) if keep)
    return replace(selected, recording=(np.cumsum(mask) - 1)[selected.recording], recordings=recordings)


def join(parts: Sequence[Windows]) -> Windows:
    """Windows of several sets, of the same length, one after the other (copies)."""
    offsets = np.cumsum([0] + [len(part.recordings) for part in parts])
    shapes = [part.shapes for part in parts if part.shapes is not None]
    return Windows(
        values=np.concatenate([part.values for part in parts]),
        recording=np.concatenate([part.recording + offset for part, offset in zip(parts, offsets, strict=False)]),
        start=np.concatenate([part.start for part in parts]),
        span=parts[0].span,
        recordings=tuple(recording for part in parts for recording in part.recordings),
        shapes=np.concatenate(shapes) if len(shapes) == len(parts) else None,
    )


def count_windows(samples: int, length: int, stride: int | None = None) -> int:
    """How many windows `cut` makes of so many samples."""
    return 0 if samples < length else (samples - length) // (stride or length) + 1


def check_length(origin: str, samples: int, length: int) -> None:
    """Refuses a recording of fewer samples than a window."""
    if samples < length:
        few = f"{samples} samples are fewer than one window of {length}"
        raise InputError(f"{origin}: {few}; use a shorter window or leave the recording out")


def cut(recording: Recording, length: int = 1024, stride: int | None = None) -> Floats:
    """Windows of `length` samples every `stride` (default: no overlap) as views (window, 1, time), without the rest."""
    stride = length if stride is None else stride
    check_length(recording.origin, recording.signal.size, length)
    return cut_samples(recording.signal, length, stride)[:, None]


def parts_of(recording: Recording, seconds: float) -> list[Recording]:
    """The recording as several of so many seconds, named by their times, without the rest; a shorter one stays."""
    if recording.rate is None:
        raise InputError(f"{recording.origin}: its rate is not known, so it cannot be cut by seconds", "rate")
    size = max(1, round(seconds * recording.rate))
    return [
        replace(
            recording,
            signal=recording.signal[first : first + size],
            speed=None if recording.speed is None else recording.speed[first : first + size],
            origin=f"{recording.origin} {first / recording.rate:g}-{(first + size) / recording.rate:g} s",
        )
        for first in range(0, recording.signal.size - size + 1, size)
    ] or [recording]


def cut_samples(samples: Floats, length: int, stride: int) -> Floats:
    """Views (window, time) of samples (time,)."""
    return np.lib.stride_tricks.sliding_window_view(samples, length)[::stride]


def standardise(values: Floats) -> Floats:
    """Each window (last axis) by its own mean and standard deviation; a constant window becomes zeros."""
    values = np.asarray(values, dtype=np.float32)
    length = values.shape[-1]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        mean = np.vecdot(values, np.ones(length, dtype=np.float32))[..., None] / np.float32(length)
        out: Floats = values - mean
        variance = np.vecdot(out, out)[..., None] / np.float32(length)
        good = (variance > 1e-24) & (variance < 1e24) & (variance > 1e-4 * mean * mean)
        out *= 1 / np.sqrt(variance)
    if not good.all():  # an offset far above the vibration, or values near the ends of float32's range
        doubtful = ~good[..., 0]
        exact = values[doubtful].astype(np.float64)
        varies = np.ptp(exact, axis=-1, keepdims=True) > 0
        exact -= exact.mean(axis=-1, keepdims=True)
        deviation = exact.std(axis=-1, keepdims=True)
        out[doubtful] = np.divide(exact, deviation, out=np.zeros_like(exact), where=varies & (deviation > 0))
    return out


def spectrum(values: Floats) -> Floats:
    """Magnitude of the FFT over the window's length, the first half of the bins: (…, time) → (…, time // 2) float32."""
    from scipy import fft

    length = values.shape[-1]
    transformed = fft.rfft(np.asarray(values, dtype=np.float32), axis=-1)[..., : length // 2]
    return np.asarray(np.abs(transformed) * np.float32(1 / length))


def squared_magnitude(values: NDArray[Any]) -> NDArray[Any]:
    """Of complex numbers, without the root that abs takes."""
    return np.asarray(np.square(values.real) + np.square(values.imag))


def spectral_shape(windows: Floats) -> Floats:
    """Log shares of energy in BANDS bands, whatever the gain: (window, channel, time) → (window, channel · band)."""
    from scipy import fft

    lines = np.ascontiguousarray(fft.rfft(standardise(windows)))
    parts = lines.view(np.float32)[..., 2 : windows.shape[-1] // 2 * 2]  # real and imaginary in turn
    starts = np.unique(np.arange(BANDS) * (parts.shape[-1] // 2) // BANDS)  # the first bin of each band
    energy = np.add.reduceat(np.square(parts), 2 * starts, axis=-1)
    total = energy.sum(axis=-1, keepdims=True)
    shares = np.log(np.maximum(energy / np.where(total > 0, total, 1), LEAST_SHARE))
    return np.asarray(shares.reshape(len(shares), -1))


def power_density(samples: NDArray[Any]) -> NDArray[np.float64]:
    """(bin,) mean power of segments of SEGMENT samples, or of fewer, with a Hann taper, their means taken off."""
    from scipy import fft

    length = min(SEGMENT, len(samples))
    segments = np.array(samples[: len(samples) // length * length], dtype=np.float64).reshape(-1, length)
    segments -= segments.mean(axis=1, keepdims=True)
    scale = max(float(segments.max()), -float(segments.min())) or 1.0  # float32 holds squares up to 1e38 alone
    segments *= np.hanning(length) / scale  # a ramp leaks without the taper
    power = squared_magnitude(fft.rfft(segments.astype(np.float32), axis=1)).mean(axis=0, dtype=np.float64)
    return np.asarray(power * scale * scale)


def resample(recording: Recording, rate: float) -> Recording:
    """The recording at another rate, after an anti-alias filter. An unknown rate is assumed to be that rate.

    >>> resample(Simulated(seconds=1.0).recording("N15_M07_F10", "healthy"), 12_000).signal.size
    12000
    """
    if recording.rate is None or recording.rate == rate:
        return replace(recording, rate=rate)
    ratio = rate_ratio(recording.origin, recording.rate, rate)
    resampled = change_rate(recording.signal, ratio.numerator, ratio.denominator)
    return replace(recording, signal=resampled, speed=None, rate=rate)


def change_rate(samples: Floats, up: int, down: int) -> Floats:
    """Samples (time,) at up/down times their rate, as scipy's resample_poly makes them, whose package loads slowly.

    The filter reaches over 10 periods of the lower rate to either side, with a Kaiser window of 5. Every `up`-th
    output is made by the same taps.
    """
    reach = 10 * max(up, down)
    places = np.arange(-reach, reach + 1)
    taps = np.sinc(10 * places / reach) * np.kaiser(places.size, 5.0)
    taps = (taps * up / taps.sum()).astype(np.float32)
    before = reach // up
    out = np.empty(-(-samples.size * up // down), dtype=np.float32)
    padded = np.pad(samples, (before, before + down))
    for phase in range(min(up, out.size)):
        first, behind = divmod(phase * down + reach, up)
        factors = taps[behind::up][::-1]
        made = out[phase::up]
        windows = cut_samples(padded[before + first + 1 - factors.size :], factors.size, down)
        made[:] = windows[: made.size] @ factors
    return out


def stretch(values: Floats, size: int) -> Floats:
    """A slowly changing signal of the same duration at so many samples, by straight lines."""
    places = np.linspace(0, values.size, size, endpoint=False)
    return np.interp(places, np.arange(values.size), values).astype(np.float32)


def rate_ratio(origin: str, rate: float, new_rate: float) -> Fraction:
    """What to resample by, with a denominator of 1000 at most: 1e6 : 1e6+1 would ask for a filter of 1e7 taps."""
    if not RATIOS[0] <= new_rate / rate <= RATIOS[1]:
        raise InputError(f"{origin}: {rate:g} Hz cannot be brought to {new_rate:g} Hz; check the rate", "rate")
    return Fraction(new_rate / rate).limit_denominator(1000)
