"""Splits by bearing and by machine, what they leave untested, and manifests that say too little or too much."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bearcat.adaptation import make_plan
from bearcat.adaptation.run import adapt
from bearcat.data import Preparation, Windows, prepare
from bearcat.data.tasks import SAME_BEARINGS, UNKNOWN_BEARINGS, SplitTask, Task, split_task
from bearcat.errors import InputError
from bearcat.settings import AdaptRequest
from tests.conftest import make_recording
from tests.test_folder import manifest, put

TASK = Task("a", "b")
Rows = dict[str, tuple[str, ...]]  # specimens by class


def windows_of(domain: str, rows: Rows, machine: str | None = "m", copies: int = 1, samples: int = 1280) -> Windows:
    """Noise: so many recordings of each specimen."""
    made = []
    for number, (label, names) in enumerate(rows.items()):
        for place, (name, copy) in enumerate(product(names, range(copies))):
            origin = f"{domain}/{label}/{name}-{place if not name else copy}.npy"
            seed = 1000 * number + place + (domain == "b") * 7000
            noise = make_recording(seed=seed, samples=samples, label=label, domain=domain, origin=origin)
            made.append(replace(noise, specimen=name or None, machine=machine))
    return prepare(made, Preparation(length=64))


def names_in(split: SplitTask, part: str) -> set[str]:
    side = split.source if part.startswith("source") else split.target
    return {str(side.recordings[side.recording[window]].specimen) for window in getattr(split, part)}


def by_specimen(source: Windows, target: Windows, seed: int = 0) -> SplitTask:
    return split_task(TASK, source, target, "specimen", seed)


SEVERAL: Rows = {"healthy": ("h1", "h2", "h3", "h4"), "inner": ("i1", "i2", "i3", "i4", "i5")}


@given(
    sizes=st.lists(st.tuples(st.integers(2, 7), st.integers(0, 7)), min_size=2, max_size=3),
    seed=st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_no_specimen_is_on_both_sides_of_source_and_target_nor_of_train_and_test(sizes, seed):
    """`sizes`: specimens of a class in the source, and how many of them the target has too."""
    source = {f"c{number}": tuple(f"s{number}.{i}" for i in range(size)) for number, (size, _) in enumerate(sizes)}
    target = {f"c{n}": (*source[f"c{n}"][:shared], f"t{n}") for n, (_, shared) in enumerate(sizes)}
    split = by_specimen(windows_of("a", source, samples=640), windows_of("b", target, samples=640), seed)
    train, test, adapted, diagnosed = (
        names_in(split, part) for part in ("source_train", "source_test", "target_train", "target_test")
    )
    assert not (train | test) & diagnosed
    assert adapted == diagnosed, "adaptation sees the recordings to be diagnosed"
    assert {f"t{number}" for number in range(len(sizes))} <= diagnosed
    for label, names in source.items():
        left = {info.specimen for info in split.source.recordings if info.label == label}
        assert set(names) & train
        assert left == set(names) - diagnosed
        if len(left) > 1:
            assert len(left & test) == max(1, round(0.2 * len(left)))
            assert not left & test & train


def test_splitting_by_specimen_uses_no_label_of_the_target():
    source, target = windows_of("a", SEVERAL), windows_of("b", SEVERAL)
    hidden = replace(target, recordings=tuple(replace(info, label=None) for info in target.recordings))
    mine, theirs = (by_specimen(source, side, 1).training for side in (target, hidden))
    for name in ("source_train", "source_test", "target_train"):
        np.testing.assert_array_equal(getattr(mine, name).values, getattr(theirs, name).values)


def test_a_class_with_one_specimen_is_divided_by_recording_and_it_is_said():
    rows = {"healthy": ("h",), "inner": ("i1", "i2", "i3", "i4")}
    source, target = windows_of("a", rows, copies=3), windows_of("b", rows)
    split = by_specimen(source, target)
    healthy = {info.origin for info in split.source.recordings if info.label == "healthy"}
    tested = {split.source.recordings[number].origin for number in split.source.recording[split.source_test]}
    assert len(healthy & tested) == 1, "whole recordings of it"
    assert any("'healthy'" in text for text in split.warnings)
    assert split.shift == "specimen"
    alone = by_specimen(windows_of("a", rows), target)
    numbers = alone.source.recording
    assert set(numbers[alone.source_train]) & set(numbers[alone.source_test]), "a block of its only recording"


def test_a_file_listed_on_both_sides_is_used_once():
    source = windows_of("a", {"healthy": ("h",), "inner": ("i1", "i2")}, copies=5)
    target = windows_of("b", {"healthy": ("h",), "inner": ("i9",)}, copies=5)
    listed = tuple(replace(info, origin=info.origin.replace("b/healthy", "a/healthy")) for info in target.recordings)
    split = by_specimen(source, replace(target, recordings=listed))
    for side, copies in ((split.source, (0, 1, 2)), (split.target, (3, 4))):
        healthy = [info.origin for info in side.recordings if info.label == "healthy"]
        assert healthy == [f"a/healthy/h-{copy}.npy" for copy in copies]


def test_what_cannot_be_split_by_specimen_is_refused_by_file():
    source, target = windows_of("a", SEVERAL), windows_of("b", SEVERAL)
    silent = replace(source, recordings=(*source.recordings[:-1], replace(source.recordings[-1], specimen=None)))
    with pytest.raises(InputError, match=r"a/inner/i5-0\.npy: .*specimen"):
        by_specimen(silent, target)


@pytest.mark.parametrize("scheme", ["window", "block", "recording"])
def test_a_paper_style_split_of_the_same_bearings_says_what_it_does_not_test(scheme):
    source, target = windows_of("a", SEVERAL), windows_of("b", SEVERAL)
    split = split_task(TASK, source, target, scheme, 0)
    assert split.shift == "condition"
    assert SAME_BEARINGS in split.warnings
    others = windows_of("b", {label: tuple(f"other {name}" for name in names) for label, names in SEVERAL.items()})
    apart = split_task(TASK, source, others, scheme, 0)
    assert (apart.shift, apart.warnings) == ("specimen", ())
    nobody = windows_of("b", dict.fromkeys(SEVERAL, ("",) * 2), copies=2)
    unknown = split_task(TASK, source, nobody, scheme, 0)
    assert unknown.shift == "unknown"
    assert UNKNOWN_BEARINGS in unknown.warnings


@pytest.fixture
def plant(tmp_path):
    """Two bearings of each class in the source, two others in the target; a manifest says so."""
    rows = [("lab", label, f"{label}-{name}") for label in ("healthy", "inner") for name in "AB"]
    rows += [("pump", "", f"pump-{name}") for name in "AB"]
    for number, (*_, name) in enumerate(rows):
        put(tmp_path / f"{name}.csv", number, samples=20_000, rate=12_000)
    lines = [f"{name}.csv,{domain},{label},{name}" for domain, label, name in rows]
    return manifest(tmp_path, "\n".join(["path,domain,label,specimen", *lines]))


def test_a_run_by_specimen_says_so_in_its_record(plant, tmp_path):
    request = AdaptRequest(
        data=str(plant), source=("lab",), target="pump", method="source-only", epochs=1, window=256, device="cpu"
    )
    record = adapt(make_plan(request), tmp_path / "out").record
    assert (record.settings.values["split"], record.shift) == ("specimen", "specimen")


def test_the_check_of_a_manifest_refuses_a_specimen_with_two_classes(plant, command):
    manifest(plant, (plant / "manifest.csv").read_text().replace("inner-B\n", "healthy-A\n"))
    status, _, error = command("data", "check", plant)
    assert (status, "healthy-A.csv" in error, "inner-B.csv" in error) == (2, True, True)
    status, _, error = command("adapt", "--data", plant, "--source", "lab", "--target", "pump", "--out", plant / "out")
    assert (status, error.count("healthy-A.csv")) == (2, 1)
    assert not (plant / "out").exists()


def test_estimates_are_judged_by_the_shift_and_by_how_many_bearings_of_a_class_the_source_has():
    others: Rows = {"healthy": ("h9",), "inner": ("i9",)}
    one: Rows = {"healthy": ("h1", "h2"), "inner": ("i1",)}
    kinds = {
        "specimen": (SEVERAL, others, "m"), "one bearing": (one, others, "m"), "condition": (SEVERAL, SEVERAL, "m"),
        "unknown": (SEVERAL, {"healthy": ("",), "inner": ("",)}, "m"), "machine": (SEVERAL, others, "n"),
    }  # fmt: skip
    for kind, (source, target, machine) in kinds.items():
        split = split_task(TASK, windows_of("a", source), windows_of("b", target, machine), "block", 0)
        assert split.trust_shift == kind
    healthy = split_task(TASK, windows_of("a", one), windows_of("b", {"healthy": ("h1",)}), "block", 0)
    assert healthy.shift == healthy.trust_shift == "condition", "the target has no bearing of its own"
