"""What `bearcat methods` says of each method, in one sentence with its place in the paper (Forest and Fink 2024).

>>> about("CAT*-Temperature")[1]
'§3.2, Eq. 6'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from bearcat.cat.recipes import RECIPES, Recipe

SIGNS = {
    "+MCC": "AT, with minimum class confusion.",
    "+SDAT": "AT, with SDAT.",
    "*": "AT, with minimum class confusion and SDAT.",
}
CALIBRATED = {  # of the methods CAT, by their calibrator
    "Temperature": ("one temperature, fitted on the source", "§3.2, Eq. 6"),
    "Vector": ("a factor and an offset for each class", "§3.2, Eq. 7"),
    "Matrix": ("a full matrix and offsets", "§3.2, Eq. 8"),
    "CPCS": ("a temperature fitted on source windows, weighted by their likeness to the target", "§3.2, Eq. 9"),
    "TransCal": ("the temperature at which confidence is the estimated target accuracy", ""),
    "recordings": ("one temperature, at the end by the agreement of each recording's windows", ""),
}
OTHERS = {
    "source-only": ("Trains on the source alone.", "§5.2"),
    "DANN": ("Makes features of both domains alike with a domain classifier and gradient reversal.", "§2.2"),
    "DANN*": ("DANN, with minimum class confusion and SDAT.", "§5.2"),
    "AT-fixed": ("DANN and the teacher's pseudo-labels above one fixed threshold.", "§2.3, §5.4"),
    "AT": ("DANN and the teacher's pseudo-labels above a threshold of their class.", "§3.3, Eq. 12"),
    "AT-views": ("AT; the teacher labels a weak view of a window, the student learns a strong one.", ""),
    "AT*-views": ("AT-views, with minimum class confusion and SDAT.", ""),
    "CAT-views": ("AT-views; the teacher is calibrated by one temperature.", ""),
    "CAT*-views": ("AT*-views; the teacher is calibrated by one temperature.", ""),
    "PCG-CNN": ("Mean teacher with consistency of sure predictions and class balance (Wu et al. 2020).", "Table 1"),
    "DTL-IPLL": ("MK-MMD and labels on which two stochastic passes agree (Zhu et al. 2022).", "Table 1"),
    "Wang": ("Wasserstein alignment, triplets and pseudo-labels (Wang et al. 2022).", "Table 1"),
    "MK-MMD": ("Lowers the discrepancy of features under five kernels (Long et al. 2015).", ""),
    "JMMD": ("MK-MMD of features and predictions together (Long et al. 2017).", ""),
    "CORAL": ("Makes the covariances of both domains alike (Sun and Saenko 2016).", ""),
    "CDAN": ("DANN on features times predictions (Long et al. 2018).", ""),
    "CDAN+E": ("CDAN in which sure windows count more.", ""),
    "AdaBN": ("Trains on the source; normalises by statistics of the target (Li et al. 2016).", ""),
    "MCD": ("Two classifiers disagree on the target, the encoder unites them (Saito et al. 2018).", ""),
    "DeepJDOT": ("Moves source windows to target windows by optimal transport (Damodaran et al. 2018).", ""),
    "dense-source-only": ("Trains on the source alone.", ""),
    "match-clusters": ("Shifts each class to the target cluster that matches it; the default of `adapt`.", ""),
    "unseen-bearings": ("Trains on the source and on bearing states known from other benches.", ""),
    "dense-MCC": ("Scales each domain by itself and lowers class confusion (Jin et al. 2020).", ""),
    "dense-CAT*-Temperature": ("CAT*-Temperature on standardised physical inputs.", ""),
    "linear-source-only": ("A linear classifier of the source alone.", ""),
}
ACCEPTED = {bool: "true, false", int: "a whole number", float: "a number"}


def about(name: str) -> tuple[str, str]:
    """A sentence about a method, and the paper's section, table or equation, or an empty text."""
    if name in OTHERS:
        return OTHERS[name]
    family, _, calibrator = name.partition("-")
    sign = next((sign for sign in SIGNS if family.endswith(sign)), "")
    if family == f"AT{sign}" and sign:
        return SIGNS[sign], "§5.4"
    if family == f"CAT{sign}" and calibrator in CALIBRATED:
        calibration, place = CALIBRATED[calibrator]
        return f"AT{sign}; the teacher is calibrated by {calibration}.", place
    return f"Ingredients: {', '.join(ingredient.name for ingredient in RECIPES[name].ingredients) or 'none'}.", ""


def settings_of(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Every setting of a method as `--method-set` takes it: name, value and what it may be."""
    from bearcat.cat.evaluate import CALIBRATORS
    from bearcat.cat.networks import ENCODERS
    from bearcat.fast.device import PRECISIONS

    tables: dict[str, Iterable[str]] = {
        "encoder": ENCODERS, "calibration": [*CALIBRATORS, "none"], "final": [*CALIBRATORS, "none"],
        "precision": [*PRECISIONS, "none"],
    }  # fmt: skip
    owners: list[tuple[str, Any]] = [("", recipe), ("schedule.", recipe.schedule)]
    for ingredient in recipe.ingredients:
        owners.append((f"{ingredient.name}.", ingredient))
        inner = [(field.name, getattr(ingredient, field.name)) for field in fields(ingredient)]
        owners += [(f"{name}.", value) for name, value in inner if is_dataclass(value)]
    rows = []
    for prefix, owner in owners:
        for field in fields(owner):
            value = getattr(owner, field.name)
            if is_dataclass(value) or field.name in ("ingredients", "input", "epochs"):  # which options set
                continue
            known = field.metadata.get("known") or tables.get(prefix + field.name, ())
            accepted = ", ".join(known) or ACCEPTED.get(type(value), "")
            rows.append((prefix + field.name, _as_text(value), accepted))
    return rows


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else f"{value}"
