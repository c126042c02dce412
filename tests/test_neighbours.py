"""A recording that does not belong with the others is named; those that merely vary are not."""

from __future__ import annotations

import numpy as np
import pytest

from bearcat.data import Folder, Preparation, Task
from bearcat.data.choose import Requested, choose_settings
from bearcat.data.survey import survey

ODD = {"rate": "is at 4000 Hz", "constant": "does not change", "clipped": "is clipped"}  # a mistake and its words
TASK = Task("600rpm", "1200rpm")


def write_plant(root, odd: tuple[str, ...]):
    """Two domains of six recordings each; the first ones of 600rpm have one mistake each."""
    for domain in ("600rpm", "1200rpm"):
        for number in range(6):
            mistake = odd[number] if domain == "600rpm" and number < len(odd) else ""
            signal = np.random.default_rng(number + 10 * len(domain)).standard_normal(8192)
            signal = {"constant": np.full(8192, 0.5), "clipped": signal.clip(-2, 2)}.get(mistake, signal)
            folder = root / domain / ("" if domain == "1200rpm" else ("healthy", "inner")[number % 2])
            folder.mkdir(parents=True, exist_ok=True)
            np.savez(folder / f"{number}.npz", x=signal, fs=4000 if mistake == "rate" else 8000)
    return Folder(root)


@pytest.mark.parametrize("kinds", [(), ("constant",), tuple(ODD)])
def test_check_and_adapt_name_the_one_that_differs(tmp_path, kinds):
    folder = write_plant(tmp_path, kinds)
    notes = survey(folder.catalogue(), Preparation(length=256, rate=8000.0)).notes
    chosen = choose_settings(folder, folder.catalogue(), TASK, Requested(input="time", rate=8000.0))[2]
    for sentences in (notes, chosen.warnings):
        named = [sentence for sentence in sentences if ".npz:" in sentence]
        assert len(named) == len(kinds)
        for number, kind in enumerate(kinds):
            assert any(f"/{number}.npz: {ODD[kind]}" in sentence for sentence in named)


def test_an_odd_rate_does_not_decide_for_all_and_several_are_another_machine(tmp_path):
    one, many = (write_plant(tmp_path / name, ("rate",) * odd) for name, odd in (("one", 1), ("many", 4)))
    assert choose_settings(one, one.catalogue(), TASK, Requested(input="time"))[2].preparation.rate == 8000
    notes = survey(many.catalogue(), Preparation(length=256, rate=8000.0)).notes
    assert not any(ODD["rate"] in note for note in notes)
