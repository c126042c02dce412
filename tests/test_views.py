"""Pictures of one recording: the kurtogram against its plain twin, what each view shows, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import wavfile
from scipy.signal import butter, sosfilt

import bearcat
from bearcat.data.bearing import BEARINGS
from bearcat.data.recording import Recording
from bearcat.diagnosis.kurtogram import TAPS, kurtogram
from bearcat.report.views import MOST, VIEWS, draw_view, viewed_recording
from tests.reference.kurtogram import band_kurtosis

RATE, RPM = 12_000, 1500.0
BEARING = BEARINGS["6205"]
GIVEN = ("--rate", RATE)


def struck(hertz: float = 4200.0, often: float | None = None, seconds: float = 2.0) -> np.ndarray:
    """Strikes that sound within 300 Hz of a resonance, under noise that is louder below 2 kHz, and a tone."""
    generator = np.random.default_rng(3)
    time = np.arange(int(seconds * RATE)) / RATE
    period = 1 / (often or BEARING.frequencies(RPM)["BPFO"])
    since = time % period
    ringing = np.exp(-(((since - period / 3) / 0.0008) ** 2)) * np.sin(2 * np.pi * hertz * since)
    hum = sosfilt(butter(4, 2000, fs=RATE, output="sos"), generator.standard_normal(time.size))
    noise = 0.5 * hum + 0.15 * generator.standard_normal(time.size)
    return (ringing + np.sin(2 * np.pi * 800 * time) + noise).astype(np.float32)


def test_the_tree_of_filters_gives_the_kurtosis_of_the_plain_twin():
    generator = np.random.default_rng(0)
    signal = (generator.standard_normal(700) * (1 + 5 * (np.arange(700) % 150 < 5))).astype(np.float32)
    found = {(band.level, round(band.low)): band.kurtosis for band in kurtogram(signal, 1000.0)}
    for splits, place in (
        ([(2, 0)], (1.0, 0)),
        ([(2, 1)], (1.0, 250)),
        ([(3, 1)], (1.6, 167)),
        ([(2, 1), (2, 0)], (2.0, 250)),
        ([(2, 1), (3, 2)], (2.6, 417)),
        ([(2, 0), (2, 1), (2, 1)], (3.0, 188)),
    ):
        assert found[place] == pytest.approx(band_kurtosis(signal.tolist(), splits, TAPS), rel=1e-9)


@pytest.mark.parametrize(("hertz", "gain"), [(2600.0, 1e-12), (4200.0, 1.0), (5200.0, 1e12)])
def test_the_band_of_a_planted_resonance_is_found_whatever_the_gain(hertz, gain):
    best = max(kurtogram(np.float32(gain) * struck(hertz), RATE), key=lambda band: band.kurtosis)
    assert best.low - 200 <= hertz <= best.high + 200
    assert best.high - best.low <= RATE / 4
    assert max(kurtogram(struck(hertz), RATE, narrowest=1400.0), key=lambda band: band.kurtosis).level <= 2


def recording(**changes) -> Recording:
    values = {"signal": struck(), "rate": RATE, "domain": "", "origin": "pump.wav", "rpm": RPM, "bearing": BEARING}
    return Recording(**values | changes)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_names_recording_and_speed_and_has_units_on_its_axes(view):
    figure = draw_view(recording(), view)
    assert "pump.wav" in figure.title
    assert "1500 rpm" in figure.title
    axes = [axis for axis in figure.drawing.axes if axis.has_data()]
    for axis in axes:
        assert axis.get_ylabel()
        assert any(unit in axis.get_xlabel() or not axis.get_xlabel() for unit in ("Hz", "order", "s", "ms"))
    figure.drawing.canvas.draw()  # nothing lies outside the picture, and no words touch each other
    width, height = figure.drawing.canvas.get_width_height()
    for axis in axes:
        box = axis.get_tightbbox()
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1
        words = [text.get_window_extent() for text in axis.texts]
        assert not [1 for number, one in enumerate(words) for other in words[:number] if one.overlaps(other)]
    assert draw_view(recording(rpm=None, bearing=None), view).render("png")


@pytest.mark.parametrize(("view", "panel"), [("envelope", 0), ("kurtogram", 1)])
def test_the_envelope_has_its_highest_line_at_the_marked_fault(view, panel):
    hertz = BEARING.frequencies(RPM)["BPFO"]
    axis = draw_view(recording(), view).drawing.axes[panel]
    line = max(axis.lines, key=lambda line: len(line.get_xdata()))
    assert line.get_xdata()[np.argmax(line.get_ydata())] == pytest.approx(hertz, rel=0.01)
    assert f"BPFO {hertz:.1f} Hz" in [text.get_text() for text in axis.texts]


def test_a_long_recording_is_shown_by_its_beginning():
    block = np.random.default_rng(0).standard_normal(MOST // 4).astype(np.float32)
    given = [0]

    def blocks():
        while True:
            given[0] += 1
            yield block

    found, speed = viewed_recording("long.wav", blocks(), float(RATE), RPM)
    assert found.signal.size == MOST
    assert given[0] <= 5
    assert speed.rpm == RPM


def test_a_file_is_drawn_from_the_command_line_and_from_python(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    signal = struck()
    wavfile.write("pump 3.wav", RATE, signal)
    status, said, _ = command("data", "show", "pump 3.wav", "--view", "envelope", "--rpm", 1500, "--bearing", "6203")
    assert status == 0
    assert "pump-3-envelope.png" in said
    assert "rpm" in said
    assert (tmp_path / "pump-3-envelope.png").read_bytes()[:4] == b"\x89PNG"
    figure = bearcat.view("pump 3.wav", "waveform", rpm=1500, bearing="6203")
    for name, start in (("a.svg", b"<?xml"), ("b.pdf", b"%PDF"), ("c.PNG", b"\x89PNG")):
        assert figure.save(tmp_path / "deep" / name).read_bytes().startswith(start)
    assert "speed not known" in bearcat.view(signal, "waveform", rate=RATE).title


def test_what_a_manifest_says_counts_and_is_said(tmp_path):
    wavfile.write(tmp_path / "a.wav", RATE, struck())
    (tmp_path / "manifest.csv").write_text("path,domain,label,rpm,bearing\na.wav,x,y,1500,6205\n")
    for rpm, bearing, said in ((None, None, False), (1500, "6205", False), (900, "6308", True)):
        figure = bearcat.view(tmp_path / "a.wav", "waveform", rpm=rpm, bearing=bearing)
        assert "1500 rpm, bearing 6205" in figure.title
        assert figure.caption.count("the stated counts") == 2 * said


@pytest.mark.parametrize(
    ("name", "words", "key"),
    [
        ("a.npy", ("envelope",), "--rate"), ("a.npy", ("kurtogam", *GIVEN), "kurtogram"),
        ("a.npy", ("cepstrum", *GIVEN), "spectrum"), ("a.npy", ("envelope", *GIVEN, "--domain", "a"), "--domain"),
        ("a.npy", ("envelope", *GIVEN, "--out", "x.abc"), "x.abc"), ("a.npy", ("envelope", *GIVEN, "--rpm", "-3"), "rpm"),
        ("a.npy", ("envelope", *GIVEN, "--rpm", "speed"), "speed"), ("two.npy", ("envelope", *GIVEN), "--channel"),
        ("dead.npy", ("kurtogram", *GIVEN), "dead.npy"), ("short.npy", ("spectrum", *GIVEN), "short.npy"),
        ("broken.wav", ("waveform",), "broken.wav"), ("", ("waveform",), "file"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_gets_a_sentence_and_status_2(tmp_path, command, name, words, key):
    np.save(tmp_path / "a.npy", struck())
    np.save(tmp_path / "two.npy", np.stack([struck()] * 2, axis=1))
    np.save(tmp_path / "dead.npy", np.zeros(9000))
    np.save(tmp_path / "short.npy", np.ones(3))
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    status, said, problem = command("data", "show", tmp_path / name, "--view", *words)
    assert (status, said) == (2, "")
    assert key in problem
    assert problem.count("\n") == 1
