"""The golden corpus: what bearcat answered to fixed inputs on v0.3, and what changed on purpose since."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REAL
from tests.golden import commands, training
from tests.golden.compare import differences, stored


def test_twelve_methods_train_as_before():
    assert differences(stored("training"), training.results()) == []


@pytest.mark.usefixtures("blank_figures")
def test_commands_answer_as_before(tmp_path: Path):
    assert differences(stored("commands"), commands.run(tmp_path, REAL)) == []


def test_a_moved_number_and_another_state_are_seen():
    wanted = {"diagnose": {"status": 1, "answer": [{"state": "inner race", "rms": 0.5}]}}
    given = {"diagnose": {"status": 1, "answer": [{"state": "ball", "rms": 0.50001}]}}
    assert [line.partition(":")[0] for line in differences(wanted, given)] == [
        "diagnose.answer[0].rms",
        "diagnose.answer[0].state",
    ]
