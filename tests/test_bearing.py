"""Bearings: the orders of their parts, and how they are named."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from bearcat.data.bearing import BEARINGS, ESTIMATE, ROWS, Bearing, find_bearing
from bearcat.errors import InputError


def test_every_ball_passes_both_races_once_per_turn_of_the_shaft_against_the_cage():
    for bearing in (*BEARINGS.values(), Bearing(9, 7.94, 39.04, contact_angle=15)):
        orders = bearing.orders()
        assert orders["BPFO"] + orders["BPFI"] == pytest.approx(bearing.balls)
        assert orders["BPFO"] == pytest.approx(bearing.balls * orders["FTF"])
        assert bearing.frequencies(900) == pytest.approx({name: 15 * order for name, order in orders.items()})


def test_every_row_of_the_table_is_a_bearing_that_can_exist_and_says_its_source():
    assert len(BEARINGS) > 600
    for name, row in ROWS.items():
        bearing, bore, outer = BEARINGS[name], float(row["bore"]), float(row["outer"] or "inf")
        assert bore < bearing.pitch_diameter < outer, name  # and the balls fit, which Bearing checks
        assert 0.05 < bearing.ball_diameter / bearing.pitch_diameter < 0.45, name
        assert bearing.ball_diameter < (outer - bore) / 2, name
        assert row["source"], name
        assert row["type"], name
        if code := re.fullmatch(r"(?:N[A-Z]*\d+|6[023489]|160|73)(\d\d)E?", name):
            known = {"00": 10, "01": 12, "02": 15, "03": 17}
            assert bore == known.get(code[1], 5 * int(code[1])), name
    counts = Counter(row["source"].startswith(ESTIMATE) for row in ROWS.values())
    assert counts[False] > 450  # published, not estimated


def test_numbers_and_orders_of_a_data_sheet_are_a_bearing_and_how_it_is_printed():
    sheet, known = find_bearing("bpfo=3.5848,bpfi=5.4152,bsf=2.3568"), BEARINGS["6205"]
    numbers = find_bearing("balls=9, ball=7.94, pitch=39.04, angle=15")
    assert sheet.orders() == pytest.approx(known.orders(), rel=1e-3)
    assert numbers == Bearing(9, 7.94, 39.04, 15.0)
    for bearing in (sheet, numbers, known):
        assert find_bearing(str(bearing)) == bearing
    angled = Bearing(12, 25.4, 110.0, 40.0).orders()
    text = ",".join(f"{name.lower()}={order:.5f}" for name, order in angled.items() if name != "FTF")
    assert find_bearing(text).orders() == pytest.approx(angled, rel=1e-3)


@pytest.mark.parametrize(
    ("designation", "cage", "outer", "inner"),
    [
        ("6004", 0.398, 3.578, 5.422), ("6203", 0.382, 3.053, 4.947), ("6204", 0.382, 3.052, 4.948),
        ("6206", 0.396, 3.568, 5.432), ("6212", 0.407, 4.066, 5.934), ("6303", 0.364, 2.545, 4.455),
        ("6310", 0.381, 3.047, 4.953), ("6311", 0.382, 3.057, 4.943), ("6312", 0.383, 3.064, 4.936),
        ("6314", 0.385, 3.076, 4.924), ("6315", 0.385, 3.081, 4.919), ("6316", 0.386, 3.086, 4.914),
    ],
)  # fmt: skip
def test_the_orders_are_those_of_timkens_catalogue(designation, cage, outer, inner):
    orders = BEARINGS[designation].orders()
    assert (orders["FTF"], orders["BPFO"], orders["BPFI"]) == pytest.approx((cage, outer, inner), abs=6e-4)


@pytest.mark.parametrize(
    ("text", "designation"),
    [
        ("6205", "6205"), ("6205-2RS JEM", "6205"), ("skf 6205zz", "6205"), ("6203-C3", "6203"), ("NSK 6804DD", "6804"),
        ("uer204", "UER204"), ("ZA-2115", "ZA2115"), ("LDK UER204", "UER204"), ("6205-2RS C3", "6205"),
        ("6205/C3", "6205"), ("SKF 6205 ETN9", "6205"), ("62052RS", "6205"), ("SKF6205", "6205"), ("61904-2Z", "6904"),
        ("NU 205 ECP", "NU205E"), ("FAG NU206-E-XL-TVP2", "NU206E"), ("NJ215", "NJ215"), ("62/28 2RS", "62/28"),
        ("MB ER-16K", "ER16K"), ("pump 6205 left", "6205"),
    ],
)  # fmt: skip
def test_a_designation_is_found_with_suffixes_and_in_any_case(text, designation):
    assert find_bearing(text) == BEARINGS[designation]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("6299", "designation"), ("62051", "designation"), ("16205", "designation"), ("", "designation"),
        ("balls=9,ball=7.94", "pitch"), ("balls=nine,ball=7.94,pitch=39", "balls"), ("balls=9,size=3", "size"),
        ("balls=90,ball=7.94,pitch=39.04", "fit"), ("balls=0,ball=7.94,pitch=39.04", "balls"),
        ("bpfo=3.6", "BPFI"), ("bpfo=3.6,bpfi=5.1", "number of balls"), ("bpfo=3.585,bpfi=5.415,bsf=4.71", "twice"),
        ("bpfo=x,bpfi=5.4", "bpfo"), ("bpfo=3.6,bpfi=5.4,size=3", "size"),
        ("balls=9,ball=nan,pitch=39.04", "diameter"), ("balls=9,ball=7.94,pitch=39.04,angle=90", "angle"),
    ],
)  # fmt: skip
def test_what_is_no_bearing_is_refused_in_one_sentence(text, word):
    with pytest.raises(InputError, match=word) as caught:
        find_bearing(text)
    assert "\n" not in str(caught.value)


def test_the_page_says_how_many_rollers_are_estimates():
    sources = [row["source"] for row in ROWS.values() if row["type"] == "cylindrical"]
    estimates = sum(source.startswith(ESTIMATE) for source in sources)
    page = " ".join((Path(__file__).parents[1] / "docs" / "diagnose.md").read_text(encoding="utf-8").split())
    assert f"Of {len(sources)} cylindrical ones (N, NF, NJ, NU, NUP) {estimates} are marked" in page
