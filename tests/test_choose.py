"""What is chosen from one's own recordings, with which reason, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bearcat.data import Folder, Split, Task, open_dataset, prepare, split_task
from bearcat.data.catalogue import load
from bearcat.data.choose import Asked, Channel, Choice, Chosen, Look, as_asked, choose, look
from bearcat.data.datasets.folder import Held
from bearcat.data.prepare import Preparation
from bearcat.errors import InputError
from bearcat.runs.adapt import choose_domains, settle
from tests.commands import bearcat
from tests.test_folder import manifest, put

TASK = Task("a", "b")
PLENTY = 300_000


def seen(
    domain: str, label: str | None, samples: int = PLENTY, rate: float | None = 12_000.0, rpm: float | None = None,
    name: str = "1", **channels: Channel,
) -> Look:  # fmt: skip
    """A recording as it was looked at."""
    told = channels or {"x": Channel(samples, 3.0)}
    return Look(domain, label, f"{domain}/{label}/{name}.csv", rate, rpm, told)


def ordinary(**changes: Any) -> list[Look]:
    """Two classes at home, an unlabelled machine to go to."""
    return [seen("a", "healthy", **changes), seen("a", "inner", **changes), seen("b", None, **changes)]


def reason(chosen: Chosen, setting: str) -> Choice:
    (found,) = [one for one in chosen.choices if one.setting == setting]
    return found


def test_ordinary_recordings_are_prepared_as_in_the_paper_but_for_the_split():
    chosen = choose(ordinary(), TASK, Asked())
    assert chosen.preparation == Preparation()
    assert (chosen.channel, chosen.balance, chosen.split) == (None, False, Split("block"))
    settings = ["channel", "rate", "window", "stride", "split", "input", "balance"]
    assert [one.setting for one in chosen.choices] == settings
    assert all(len(one.reason) > 10 and "\n" not in one.reason for one in chosen.choices)


def test_what_is_asked_for_is_not_chosen():
    asked = Asked("x", 6_000.0, 512, 128, "window", "frequency", True)
    chosen = choose(ordinary(), TASK, asked)
    assert chosen.choices == ()
    assert chosen.preparation == Preparation("frequency", 512, 128, 6_000.0)
    assert (chosen.channel, chosen.split, chosen.balance) == ("x", Split("window"), True)


def test_named_datasets_keep_the_papers_preparation():
    assert as_asked(Asked()) == Chosen(Preparation(), Split(), None, False)
    dataset = open_dataset("simulated")
    assert settle(dataset, ("N15_M07_F10",), "N09_M07_F10", Asked(window=256)) == (
        dataset, Chosen(Preparation(length=256), Split(), None, False),
    )  # fmt: skip


def test_nothing_is_chosen_by_the_targets_labels():
    looks = [*ordinary()[:2], *(seen("b", None, name=str(n), rate=10_000.0 + n) for n in range(4))]
    labelled = [*looks[:2], *(seen("b", "inner", name=str(n), rate=10_000.0 + n) for n in range(4))]
    labelled = [Look(one.domain, one.label, plain.origin, one.rate, one.rpm, one.channels)
                for one, plain in zip(labelled, looks, strict=True)]  # fmt: skip
    assert choose(looks, TASK, Asked()) == choose(labelled, TASK, Asked())


# --- rate -------------------------------------------------------------------------------------------------------------


def test_different_rates_go_down_to_the_lowest_and_the_loss_is_told():
    looks = [seen("a", "healthy", rate=48_000.0), seen("a", "inner", rate=48_000.0), seen("b", None)]
    chosen = choose(looks, TASK, Asked())
    assert chosen.preparation.rate == 12_000.0
    told = reason(chosen, "rate")
    assert told.value == "12000 Hz"
    assert "lowest of 12000, 48000 (in the target)" in told.reason
    assert "content above 6000 Hz of the faster recordings is lost" in told.reason


def test_windows_are_counted_after_resampling():
    looks = [seen("a", "healthy", 240_000, 48_000.0), seen("a", "inner", 240_000, 48_000.0), seen("b", None)]
    stride = reason(choose(looks, TASK, Asked()), "stride")
    assert f"{60_000 // 1024} windows of the rarest class" in stride.reason


def test_one_rate_is_left_as_it_is_and_unknown_ones_stay_unknown():
    assert choose(ordinary(), TASK, Asked()).preparation.rate is None
    unknown = choose(ordinary(rate=None), TASK, Asked())
    assert unknown.preparation.rate is None
    assert "no file says its rate" in reason(unknown, "rate").reason


def test_rates_known_and_unknown_do_not_mix_unless_one_is_asked_for():
    looks = [seen("a", "healthy"), seen("a", "inner", rate=48_000.0), seen("b", None, rate=None)]
    with pytest.raises(
        InputError, match=r"b/None/1\.csv: does not say its sampling rate, while others do \(12000 Hz, 480"
    ):
        choose(looks, TASK, Asked())
    assert choose(looks, TASK, Asked(rate=12_000.0)).preparation.rate == 12_000.0


def test_a_rate_too_low_for_bearings_and_one_that_invents_are_warned_of():
    assert any("nothing above 1000 Hz is seen" in one for one in choose(ordinary(rate=2_000.0), TASK, Asked()).warnings)
    up = choose(ordinary(), TASK, Asked(rate=48_000.0)).warnings
    assert any("brought up to 48000 Hz, which adds no content" in one for one in up)


# --- channels ---------------------------------------------------------------------------------------------------------


def test_the_only_common_channel_is_taken():
    looks = [
        seen("a", "healthy", x=Channel(PLENTY, 3), y=Channel(PLENTY, 9)),
        seen("a", "inner", x=Channel(PLENTY, 3)),
        seen("b", None, x=Channel(PLENTY, 3), y=Channel(PLENTY, 9)),
    ]
    chosen = choose(looks, TASK, Asked())
    assert chosen.channel == "x"
    assert "the only one that all recordings have" in reason(chosen, "channel").reason


def test_channels_that_differ_are_refused_with_both_lists():
    looks = [seen("a", "healthy", x=Channel(9, 3), y=Channel(9, 3)), seen("a", "inner", x=Channel(9, 3)),
             seen("b", None, z=Channel(9, 3))]  # fmt: skip
    with pytest.raises(InputError, match=r"no channel is in all recordings \(a/healthy/1.csv: x, y; b/None/1.csv: z\)"):
        choose(looks, TASK, Asked())


def impacts(seed: int, strength: float, samples: int = 32_768) -> np.ndarray:
    """Noise, and decaying ringing every 300 samples."""
    random = np.random.default_rng(seed)
    ringing = np.exp(-np.arange(60) / 12) * np.sin(2 * np.pi * 0.3 * np.arange(60))
    train = np.zeros(samples)
    train[::300] = strength * (1 + 0.2 * random.standard_normal(len(train[::300])))
    return np.convolve(train, ringing)[:samples] + 0.3 * random.standard_normal(samples)


def several(strengths: dict[str, float], **more: np.ndarray) -> list[Look]:
    places = [("a", "healthy"), ("a", "inner"), ("b", None)]
    return [
        look(Held(domain, label, f"{domain}/{label}", 12_000.0, None,
                  {name: impacts(number, strength) for name, strength in strengths.items()} | more))
        for number, (domain, label) in enumerate(places)
    ]  # fmt: skip


def test_among_several_the_most_impulsive_vibration_is_taken_and_the_others_are_told():
    time = np.arange(32_768)
    tacho = (time % 500 < 10) + 0.01 * np.random.default_rng(0).standard_normal(32_768)  # impulsive, but no vibration
    looks = several({"housing": 4.0, "foundation": 0.0}, tacho=tacho, oil=time / 1e4, spare=np.zeros(32_768))
    chosen = choose(looks, TASK, Asked())
    assert chosen.channel == "housing"
    told = reason(chosen, "channel").reason
    assert "most impulsive" in told
    assert "foundation 3.0" in told
    for words in ("'tacho' stands at one level", "'oil' changes slowly", "'spare' does not change"):
        assert words in told


def test_where_no_channel_stands_out_the_list_is_told_and_nothing_chosen():
    with pytest.raises(
        InputError, match=r"2 channels \(left, right\) and none stands out .* say which one with --chann"
    ):
        choose(several({"left": 0.0, "right": 0.0}), TASK, Asked())
    assert choose(several({"left": 0.0, "right": 0.0}), TASK, Asked(channel="right")).channel == "right"


def test_the_only_vibration_needs_not_to_be_impulsive():
    assert choose(several({"x": 0.0}, load=np.arange(32_768) / 9), TASK, Asked()).channel == "x"


# --- windows ----------------------------------------------------------------------------------------------------------


def test_slow_shafts_get_a_window_of_about_a_turn_up_to_a_limit():
    for rpm, rate, length in ((600.0, 25_600.0, 2048), (60.0, 25_600.0, 4096), (3000.0, 25_600.0, 1024)):
        chosen = choose(ordinary(samples=2_000_000, rate=rate, rpm=rpm), TASK, Asked())
        assert chosen.preparation.length == length
    assert (
        "at 60 rpm a turn of the shaft takes 25600 samples"
        in reason(choose(ordinary(samples=2_000_000, rate=25_600.0, rpm=60.0), TASK, Asked()), "window").reason
    )


def test_the_speed_is_read_from_the_domains_name_or_the_manifest():
    def rpm(domain: str, told: float | None = None) -> float | None:
        return look(Held(domain, None, "x", None, told, {"x": np.arange(99.0)})).rpm

    assert [rpm("600rpm"), rpm("mill 1200.5 RPM"), rpm("load3"), rpm("600rpm", 750.0)] == [600, 1200.5, None, 750]


def test_few_samples_overlap_and_fewer_get_shorter_windows():
    found = {}
    for samples in (60_000, 30_000, 15_000, 5_000):
        looks = [seen("a", "healthy"), seen("a", "inner", samples), seen("b", None)]
        chosen = choose(looks, TASK, Asked()).preparation
        found[samples] = (chosen.length, chosen.step)
    assert found == {60_000: (1024, 1024), 30_000: (1024, 512), 15_000: (1024, 256), 5_000: (256, 64)}


def test_a_short_recording_shortens_the_window_and_is_named():
    looks = [*ordinary(), seen("b", None, samples=700, name="short")]
    chosen = choose(looks, TASK, Asked())
    assert chosen.preparation.length == 512
    assert "the shortest, b/None/short.csv, has 700 samples" in reason(chosen, "window").reason


def test_many_short_recordings_are_parted_whole_and_few_by_window():
    def short(count: int) -> Split:
        places = [("a", "healthy"), ("a", "inner"), ("b", None)]
        return choose([seen(*p, samples=1500, name=str(n)) for p in places for n in range(count)], TASK, Asked()).split

    assert short(40) == Split("recording")
    looks = [
        seen(*p, samples=1500, name=str(n)) for p in (("a", "healthy"), ("a", "inner"), ("b", None)) for n in (1, 2, 3)
    ]
    chosen = choose(looks, TASK, Asked(window=1024, stride=100))
    assert chosen.split == Split("window")
    assert any("share samples with training windows" in one for one in chosen.warnings)


@pytest.mark.parametrize("samples", [(60_000, 60_000, 300_000), (20_000, 9_000, 40_000), (200_000, 5_000, 9_000)])
def test_what_is_chosen_can_be_cut_and_parted(samples):
    """The whole way to a split, with recordings of the sizes that were looked at."""
    from tests.conftest import make_recording

    sizes = dict(zip([("a", "healthy"), ("a", "inner"), ("b", None)], samples, strict=True))
    chosen = choose([seen(*place, samples=size) for place, size in sizes.items()], TASK, Asked())
    windows = [
        prepare([make_recording(samples=size, domain=domain, label=label, rate=12_000.0)
                 for (domain, label), size in sizes.items() if domain == where], chosen.preparation)
        for where in "ab"
    ]  # fmt: skip
    split = split_task(TASK, *windows, chosen.split, seed=0)
    assert min(len(split.training.source_train), len(split.training.target_train)) >= 64


# --- classes ----------------------------------------------------------------------------------------------------------


def test_uneven_classes_are_balanced_and_even_ones_are_not():
    looks = [seen("a", "healthy", 1_000_000), seen("a", "inner", 250_000), seen("b", None)]
    chosen = choose(looks, TASK, Asked())
    assert chosen.balance
    assert "class 'healthy' has 4.0 times the windows of 'inner'" in reason(chosen, "balance").reason
    assert not choose(looks, TASK, Asked(balance=False)).balance
    assert not choose([looks[0], seen("a", "inner", 400_000), looks[2]], TASK, Asked()).balance


def test_several_sources_are_one_and_count_together():
    looks = [seen("a", "healthy"), seen("a", "inner"), seen("c", "healthy"), seen("c", "outer"), seen("b", None)]
    chosen = choose(looks, Task(("a", "c"), "b"), Asked())
    assert chosen.preparation == Preparation()
    assert any("single recording each: inner, outer" in one for one in chosen.warnings)


def test_classes_that_the_source_does_not_teach_are_told():
    chosen = choose([*ordinary(), seen("b", "cage")], TASK, Asked())
    (told,) = [one for one in chosen.warnings if "cage" in one]
    assert "count in no score" in told
    assert "given the name of a class that the source has" in told


@pytest.mark.parametrize(
    ("looks", "asked", "sentence"),
    [
        ([seen("a", "healthy"), seen("b", None)], Asked(), "the source has only the class 'healthy'"),
        ([seen("a", None), seen("b", None)], Asked(), r"a/None/1\.csv: a source recording needs a label"),
        (ordinary()[:2], Asked(), "the domain 'b' has no recordings"),
        ([*ordinary()[:1], seen("a", "inner", 700), seen("b", None)], Asked(), "class 'inner' of the source has 7 windows"),
        ([*ordinary(), seen("b", None, 100)], Asked(), r"100 samples are fewer than one window of 256"),
        ([*ordinary(), seen("b", None, 700)], Asked(window=1024), r"700 samples are fewer than one window of 1024"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_task_is_refused(looks, asked, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        choose(looks, TASK, asked)
    assert "\n" not in str(caught.value)


# --- from files -------------------------------------------------------------------------------------------------------


def test_folders_are_looked_at_channel_by_channel_and_part_by_part(tmp_path):
    put(tmp_path / "long.csv", 1, samples=4000)
    np.save(tmp_path / "two.npy", np.random.default_rng(0).standard_normal((2, 2000)))
    folder = Folder(
        root=manifest(
            tmp_path, "path,domain,label,start,stop,channel,rpm\nlong.csv,a,x,100,3000,,\ntwo.npy,b,,,,2,640\n"
        )
    )
    first, second = (look(one) for one in folder.signals(folder.catalogue()))
    assert {name: one.samples for name, one in first.channels.items()} == {"1": 2900}
    assert (list(second.channels), second.rpm, second.rate) == (["2"], 640.0, None)


def test_a_chosen_channel_is_the_one_that_is_read(tmp_path):
    for number, place in enumerate(("a/healthy", "a/inner", "b")):
        (tmp_path / place).mkdir(parents=True)
        np.savez(tmp_path / place / "1.npz", near=impacts(number, 5.0), far=impacts(number + 9, 0.0), fs=12_000.0)
    dataset, chosen = settle(open_dataset(str(tmp_path)), ("a",), "b", Asked())
    assert chosen.channel == "near"
    recordings = load(dataset.catalogue())
    assert {one.channel for one in recordings} == {"near"}
    np.testing.assert_allclose(recordings[0].signal, impacts(0, 5.0), rtol=1e-6)


def test_domains_are_named_once_and_an_empty_one_is_told(tmp_path):
    put(tmp_path / "a" / "healthy" / "1.csv", 1)
    put(tmp_path / "b" / "1.csv", 2)
    (tmp_path / "c").mkdir()
    catalogue = open_dataset(str(tmp_path)).catalogue()
    assert choose_domains(catalogue, ["a", "a", "0"], "b") == (("a",), "b")
    assert "c: a folder without recordings" in catalogue.notes
    with pytest.raises(InputError, match="the domain 'c' has no recordings; put some into its folder"):
        choose_domains(catalogue, ["a"], "c")
    with pytest.raises(
        InputError, match="unknown domain 'a, b'; for several sources repeat the option: --source a --source b$"
    ):
        choose_domains(catalogue, ["a, b"], None)
    with pytest.raises(InputError, match="every domain is a source"):
        choose_domains(catalogue, ["a", "b"], None)


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in which something is wrong, side by side: each pair of domains is a task that cannot be."""
    root = tmp_path_factory.mktemp("plant")
    for number, (domain, label) in enumerate([("good", "healthy"), ("good", "inner"), ("good", "outer")]):
        put(root / domain / label / "1.csv", number, samples=20_000, rate=12_000)
    put(root / "one-class" / "healthy" / "1.csv", 10, samples=20_000, rate=12_000)
    put(root / "few" / "healthy" / "1.csv", 11, samples=20_000, rate=12_000)
    put(root / "few" / "inner" / "1.csv", 12, samples=500, rate=12_000)
    put(root / "silent" / "1.csv", 13, samples=20_000)
    put(root / "short" / "1.csv", 14, samples=90, rate=12_000)
    (root / "stereo").mkdir()
    np.savez(
        root / "stereo" / "1.npz", left=np.random.default_rng(0).standard_normal(9_000), right=np.ones(9_000), fs=12e3
    )
    put(root / "plain" / "1.csv", 15, samples=20_000, rate=12_000)
    (root / "empty").mkdir()
    return root


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--source", "one-class", "--target", "plain"], "the source has only the class 'healthy'"),
        (["--source", "few", "--target", "plain"], "class 'inner' of the source has 4 windows (256 samples every 64)"),
        (["--source", "good", "--target", "good"], "the target 'good' is a source too; choose two different domains"),
        (["--source", "good", "--target", "empty"], "the domain 'empty' has no recordings"),
        (["--source", "good", "--target", "silent"], "silent/1.csv: does not say its sampling rate, while others do"),
        (["--source", "good", "--target", "short"], "short/1.csv: 90 samples are fewer than one window of 256"),
        (["--source", "good", "--target", "stereo"], "no channel is in all recordings (good/healthy/1.csv: x; stereo"),
        (["--source", "plain", "--target", "good"], "plain/1.csv: a source recording needs a label"),
        (["--source", "good", "--target", "plain", "--channel", "y"], "has no channel 'y'"),
        (["--source", "good", "--target", "plain", "--split", "recording"], "has a single recording"),
    ],
)
def test_adapt_refuses_in_one_sentence_and_status_2(plant, words, sentence, tmp_path):
    result = bearcat("adapt", "--data", plant, *words, "--out", tmp_path / "out")
    assert result.returncode == 2, result.stdout
    told = [line for line in result.stderr.splitlines() if line.startswith("bearcat: ")]
    assert len(told) == 1, result.stderr
    assert sentence in told[0]
    assert not (tmp_path / "out").exists()
