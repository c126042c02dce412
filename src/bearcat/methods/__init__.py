"""What others propose and what bearcat adds: alignments, Table 1's systems, views, preparations, calibrators.

The rows below join the paper's own in RECIPES and CALIBRATORS (cat/recipes.py), as rows of a user's module do.

>>> Recipe((Adversarial(), Triplet(weight=0.5)), calibration="Temperature").in_epochs(40).schedule.align_from
7
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bearcat.cat.ingredient import Ingredient
from bearcat.cat.losses import Adversarial, Confusion, Sharpness
from bearcat.cat.networks import Dense, Encoder, Linear
from bearcat.cat.recipes import CALIBRATORS, GROUPS, RECIPES, Recipe
from bearcat.cat.scaling import Temperature
from bearcat.cat.teacher import SelfTraining, Teacher
from bearcat.methods.alignments import (
    ClassifierDiscrepancy,
    ConditionalAdversarial,
    CovarianceMatching,
    JointMatching,
    KernelMatching,
    TargetStatistics,
    Transport,
    Triplet,
    Uniformity,
    Wasserstein,
)
from bearcat.methods.matching import MatchClusters
from bearcat.methods.target_calibration import PseudoCal, RecordingConfidence, TargetConfidence, TransCal
from bearcat.methods.transforms import KnownStates, Standardise, StrongView, WeakView

# Chosen on CWRU and simulated bearings, where it is as good as any of these on a full target and no worse than the
# unadapted network on targets that are mostly healthy (docs/protocol.md).
DEFAULT_RECIPE = "match-clusters"
FINAL = TargetConfidence()  # chosen on CWRU and simulated bearings (docs/results.md, "Calibrators for the target")
PHYSICAL_EPOCHS = 60  # the classes are apart from the start, so a fifth of the paper's course will do

_STAR = (Confusion(), Sharpness())  # the asterisk
_AT = (SelfTraining(), Adversarial())
_VIEWS = (WeakView(), SelfTraining(), StrongView(), Adversarial())
_OF_STUDENT = Teacher(momentum=0.0)  # the student itself, with statistics of the target


def _physical(
    *ingredients: Ingredient, first: tuple[Ingredient, ...] = (), by: str = "domain", encoder: type[Encoder] = Dense,
    **settings: Any,
) -> Recipe:  # fmt: skip
    """A recipe for physical inputs, whose points are standardised; one with a calibrator ends with the target's."""
    final = FINAL if settings.get("calibration") else None
    settings = {"input": "physics"} | settings
    recipe = Recipe((*first, Standardise(by), *ingredients), final=final, encoder=encoder(), **settings)
    return recipe.in_epochs(PHYSICAL_EPOCHS)


CALIBRATORS |= {kind.__name__: kind for kind in (TransCal, TargetConfidence, PseudoCal, RecordingConfidence)}
GROUPS |= {
    "Table 1": {  # the other self-training systems that the paper compares
        "PCG-CNN": Recipe((
            SelfTraining(3.0, "fixed", 0.96, objective="squared", teacher=Teacher(momentum=0.99)), Uniformity(),
        )),
        "DTL-IPLL": Recipe((SelfTraining(samples=2, agree=True, teacher=_OF_STUDENT), KernelMatching())),
        "Wang": Recipe((SelfTraining(teacher=_OF_STUDENT), Wasserstein(), Triplet())),
    },
    "alignments": {
        "MK-MMD": Recipe((KernelMatching(),)),
        "JMMD": Recipe((JointMatching(),)),
        "CORAL": Recipe((CovarianceMatching(),)),
        "CDAN": Recipe((ConditionalAdversarial(),)),
        "CDAN+E": Recipe((ConditionalAdversarial(entropy=True),)),
        "AdaBN": Recipe((TargetStatistics(),)),
        "MCD": Recipe((ClassifierDiscrepancy(),)),
        "DeepJDOT": Recipe((Transport(),)),
    },
    "ours": {
        "AT-views": Recipe(_VIEWS),
        "AT*-views": Recipe((*_VIEWS, *_STAR)),
        "CAT-views": Recipe(_VIEWS, calibration=Temperature()),
        "CAT*-views": Recipe((*_VIEWS, *_STAR), calibration=Temperature()),
        "CAT*-recordings": Recipe((*_AT, *_STAR), calibration=Temperature(), final=RecordingConfidence()),
        "CAT-TransCal": Recipe(_AT, calibration=TransCal()),
        "CAT*-TransCal": Recipe((*_AT, *_STAR), calibration=TransCal()),
    },
    "ours, on physical inputs": {  # docs/inputs.md; most names begin with the encoder's
        "dense-source-only": _physical(by="source"),
        "match-clusters": _physical(first=(MatchClusters(),), by="source", calibration=Temperature()),
        # By the source's temperature to the end: FINAL has the higher ECE on other bearings (docs/LOG.md).
        "unseen-bearings": replace(
            _physical(first=(KnownStates(),), by="source", calibration=Temperature(), input="bearing-orders"),
            final=None,
        ),
        "dense-MCC": _physical(Confusion(), calibration=Temperature()),
        "dense-CAT*-Temperature": _physical(*_AT, *_STAR, calibration=Temperature()),
        "linear-source-only": _physical(by="source", encoder=Linear, calibration=Temperature()),
    },
}  # fmt: skip
RECIPES |= {name: recipe for group in GROUPS.values() for name, recipe in group.items()}


def unadapted(recipe: Recipe) -> tuple[str, Recipe]:
    """The same network, schedule and calibration trained on the source alone, with its name among RECIPES."""
    scaling = (Standardise("source"),) if recipe.find(Standardise) else ()
    name = f"{str(recipe.encoder).partition(':')[0]}-source-only"
    return name if name in RECIPES else "source-only", replace(recipe, ingredients=scaling, published=False)
