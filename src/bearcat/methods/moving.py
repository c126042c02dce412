"""Moving the source's classes to where the target has them, where the target's recordings say where that is.

Standardising each domain by itself, alignment and class confusion give the target the source's class shares: a target
that is all healthy is spread over the faults. Here the classes are moved one by one, so the shares do not matter; and
where the recordings do not tell an offset of the machine from a fault, nothing is moved and the model is the unadapted
one (docs/plant.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bearcat.errors import InputError
from bearcat.methods.ingredient import Ingredient

if TYPE_CHECKING:
    from bearcat.data.recording import Floats, Integers
    from bearcat.data.tasks import TrainingData
    from bearcat.methods.hypotheses import Matching
    from bearcat.methods.recipe import Schedule

# Groups of several recordings may be two of one class. Then what the matching leaves over may be this many times what
# is left where classes may be missing (docs/plant.md).
MORE_LEFT = 1.5
FEWEST_CLASSES = 3  # two groups are matched with two classes by their order alone, which an offset hides
# Where the target has fewer groups than the source classes, or one more, more is asked of a matching.
FEWEST_GROUPS = 0.6  # of the number of classes
CLEAR_FIT, CLEAR_MARGIN = 2 / 3, 1.05
STRANGE = 2.0  # distance of a group that is left over from the nearest class, in those of matched groups: it is unknown


@dataclass(frozen=True)
class MoveClasses(Ingredient):
    """Compares hypotheses about the target's recordings (methods/hypotheses.py) and moves the source accordingly."""

    name = "moving"
    uses_target = False  # its loss: it has none
    apart: float = 0.6  # recordings nearer than this, in windows' distances from their centre, are one group
    fit: float = 1 / 3  # of the groups to the classes, from which on they are moved
    windows: int = 10  # of each group at least: the centre of fewer is not known well enough to move a class there

    def __post_init__(self) -> None:
        if self.apart < 0 or not 0 <= self.fit <= 1 or self.windows < 1:
            raise InputError(
                "moving.apart must not be negative, moving.fit must lie between 0 and 1, moving.windows be positive"
            )

    def start(self, schedule: Schedule) -> int:  # noqa: ARG002
        return 0

    def fit_scaling(self, data: TrainingData) -> tuple[TrainingData, None]:
        """The data with the source's windows moved, and what was found."""
        import numpy as np

        from bearcat.data.tasks import UNKNOWN
        from bearcat.methods.hypotheses import discriminant_space, free_left, grouped, match

        source, target, classes = data.source_train, data.target_train, len(data.classes)
        values = target.values.reshape(len(target), -1)
        known = target.reference if len(target.reference) else np.full(len(target), UNKNOWN)
        space = discriminant_space(source.values.reshape(len(source), -1), source.labels, classes)
        points = space.project(values)
        group, centres = grouped(points, target.recording, classes, self.apart)
        fewest = int(np.bincount(group).min())
        found: dict[str, Any] = {"groups": len(centres), "fewest": fewest, "wanted": self.windows, "adapted": False}
        of_group = np.array([_known_class(known[group == number]) for number in range(len(centres))])
        named = of_group[of_group != UNKNOWN]
        distinct = len(np.unique(named)) == len(named)  # two groups known to be healthy leave a class without one
        enough = max(FEWEST_CLASSES, FEWEST_GROUPS * classes) <= len(centres) <= classes + 1
        found["enough"] = enough
        if distinct and enough and classes >= FEWEST_CLASSES and fewest >= self.windows:
            matching = match(centres, space.centres, of_group)
            free = free_left(centres, space.centres)
            scatter = float(((space.centres - space.centres.mean(axis=0)) ** 2).sum())
            found |= {"fit": matching.fit, "margin": matching.margin, "free": 1 - free / scatter}
            single = len(np.unique(target.recording)) == classes == len(centres)  # no class can be taken for two
            equal = len(centres) == classes
            clear = matching.fit > self.fit if equal else matching.fit > CLEAR_FIT and matching.margin > CLEAR_MARGIN
            if clear and (single or matching.left <= MORE_LEFT * free):
                codes = matching.classes[group]
                offsets = _offsets(values, codes, source.values, source.labels)
                common = np.mean(list(offsets.values()), axis=0)
                offsets |= {code: common for code in range(classes) if code not in offsets}
                found |= {"adapted": True, "shares": _shares(codes, data)}
                strange = np.isin(group, _strange(centres, space.centres, matching))
                if len(target.recording) and strange.any():
                    found["unknown"] = np.unique(target.recording[strange]).tolist()
                return _moved(data, offsets, found), None
        if (known != UNKNOWN).any():
            offsets = _offsets(values, known, source.values, source.labels)
            common = np.mean(list(offsets.values()), axis=0)
            projected = space.project(np.stack([values.mean(axis=0), values.mean(axis=0) - common]))
            factor = _common_share(centres[of_group == UNKNOWN], space.centres, projected[0] - projected[1])
            rest = {code: factor * common for code in range(classes) if code not in offsets}
            return _moved(data, offsets | rest, found | {"adapted": True, "reference": True}), None
        return replace(data, findings={**data.findings, "moving": found}), None


def _known_class(codes: Integers) -> int:
    """The class that most of a group's windows are known to be of; UNKNOWN where none is."""
    import numpy as np

    known = codes[codes >= 0]
    return int(np.bincount(known).argmax()) if len(known) else -1


def _strange(groups: Any, centres: Any, matching: Matching) -> Integers:
    """The groups that are left over and far from every class: their recordings show a fault the source lacks."""
    import numpy as np

    left_over = np.flatnonzero(matching.classes == -1)
    distance = ((groups[left_over, None] - centres - matching.offset) ** 2).sum(axis=2).min(axis=1)
    usual = matching.left / (matching.classes >= 0).sum()
    return np.asarray(left_over[distance > STRANGE**2 * usual])


def _common_share(groups: Any, centres: Any, offset: Any) -> float:
    """How much of the reference's offset the other classes share: all or nothing, by which the other groups lie nearer
    to classes; half where there are no other groups.
    """
    if not len(groups):
        return 0.5

    def distance(share: float) -> float:
        return float(((groups[:, None] - centres - share * offset) ** 2).sum(axis=2).min(axis=1).sum())

    return 1.0 if distance(1.0) < distance(0.0) else 0.0


def _offsets(values: Floats, codes: Integers, source: Floats, labels: Integers) -> dict[int, Any]:
    """From the centre of each class of the source to that of the target's windows of this code; UNKNOWN is left out."""
    import numpy as np

    flat = source.reshape(len(source), -1)
    present = [int(code) for code in np.unique(codes) if code >= 0]
    return {code: values[codes == code].mean(axis=0) - flat[labels == code].mean(axis=0) for code in present}


def _moved(data: TrainingData, offsets: dict[int, Any], found: dict[str, Any]) -> TrainingData:
    parts = {}
    for name in ("source_train", "source_test"):
        part = getattr(data, name)
        values = part.values.copy()
        for code, offset in offsets.items():
            values[part.labels == code] += offset.reshape(values.shape[1:]).astype(values.dtype)
        parts[name] = replace(part, values=values)
    return replace(data, **parts, findings={**data.findings, "moving": found})


def _shares(codes: Integers, data: TrainingData) -> dict[str, float]:
    import numpy as np

    counts = np.bincount(codes[codes >= 0], minlength=len(data.classes))
    return dict(zip(data.classes, (counts / counts.sum()).tolist(), strict=True))
