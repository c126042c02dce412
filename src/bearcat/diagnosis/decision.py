"""What a decision is, of a model or of a recording, and the one on a model: the highest severity of the findings.

`decide` gives an action, the accuracy behind it, its interval, the findings and the reasons: sentences of the most
severe ones. Terminal, page, server and Python print that and nothing else. Recordings are decided in
judging.py.

>>> decide(ModelEvidence(expected=Estimate(0.97, 0.91, 1.0))).action
'use'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bearcat.data.recording import ONE_BEARING
from bearcat.findings import Finding, Severity, capitalised, highest, sentences

USE, CHECK, REFUSE = "use", "check", "do not use"  # of a model
OK, ALARM = "ok", "alarm"  # of a recording, besides CHECK
ACTIONS = (OK, CHECK, ALARM)
HEALTHY, UNKNOWN_STATE, CANNOT_TELL = "healthy", "unknown", "cannot tell"
UNCLEAR = "fault, type unclear"
SEVERE = "severe vibration"  # nothing is known of the bearing but that it shakes too much
UNREADABLE, NOT_DIAGNOSED, NO_SIGNAL = "unreadable", "not diagnosed", "no signal"

LEVEL = 0.9  # of intervals
# A model (docs/trust.md). Expected accuracy and its lower end to use it; below POOR it is not to be used.
GOOD, SAFE, POOR = 0.95, 0.75, 0.6
LEARNT = 0.2  # of the way from chance to certainty on the source, below which a model is called useless
FEWEST_WINDOWS = 20  # of the source: fewer, all right, are no sign that nothing was learnt
FEWEST_COMPARED = 2  # recordings that physics can diagnose, from which on it may outvote a model
ENOUGH = 3  # labelled recordings, all of them right, that confirm an estimate
SLACK = 0.02  # a window in fifty, by which check models may agree less with an adapted model
# What the highest severity of a model and of a recording means.
OF_MODEL = {"ok": USE, "remark": USE, "check": CHECK, "alarm": REFUSE}
OF_RECORDING = {"ok": OK, "remark": OK, "check": CHECK, "alarm": ALARM}


@dataclass(frozen=True)
class Estimate:
    """A share of windows, with the interval it is expected in."""

    value: float
    low: float
    high: float


def binomial_interval(count: int, total: int) -> tuple[float, float]:
    """The exact LEVEL interval (Clopper and Pearson) of a share of which `count` of `total` were seen."""
    from scipy.stats import binomtest

    interval = binomtest(count, total).proportion_ci(LEVEL, "exact")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Decision:
    """What to do: `use`, `check` or `do not use` of a model, `ok`, `check` or `alarm` of a recording."""

    action: str
    expected: float | None = None  # accuracy of the model
    interval: tuple[float, float] | None = None
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        if self.action not in (*ACTIONS, USE, REFUSE):
            raise ValueError(f"'{self.action}' is no decision")

    @property
    def sentence(self) -> str:
        """The decision on a model in one line."""
        parts = [f"Recommendation: {self.action}."]
        if self.expected is not None:
            low, high = self.interval or (self.expected, self.expected)
            parts.append(f"Expected accuracy {100 * self.expected:.0f} % ({100 * low:.0f}–{100 * high:.0f} %).")
        return " ".join([*parts, *map(capitalised, self.reasons)])


@dataclass(frozen=True)
class PhysicsCheck:
    """How many recordings both physics and the model can diagnose, and on which physics names a fault that the model
    does not; that physics finds none counts for nothing, as it is no proof of health.
    """

    compared: int
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelCheck:
    """Labelled recordings of the target, how many are diagnosed correctly, and of how many classes they are."""

    recordings: int
    right: int
    classes: int

    @property
    def rate(self) -> Estimate:
        return Estimate(self.right / self.recordings, *binomial_interval(self.right, self.recordings))


@dataclass(frozen=True)
class ModelEvidence:
    """All that is known of a trained model without target labels, and what some labels say where there are any."""

    expected: Estimate | None  # accuracy on the target; None: its confidences are no numbers
    finite: bool = True  # the loss never became NaN or infinite
    source: Estimate | None = None  # balanced accuracy on held-out source windows, with its interval
    source_windows: int = 0
    classes: int = 0
    one_class: str | None = None  # the only class predicted on several target recordings, if it is a fault
    calibrated: bool = True
    uncertain: tuple[str, ...] = ()  # recordings whose labels would say most
    physics: PhysicsCheck | None = None
    labels: LabelCheck | None = None
    median: float | None = None  # of the accuracy of past runs, where `expected.value` was held below it
    shift: str | None = None  # the kind of past runs it comes from: a key of TESTED; None: no check models, so of none


def decide(evidence: ModelEvidence) -> Decision:
    """What to do with a model, and why."""
    expected, labels = evidence.expected, evidence.labels
    refusals = list(_refusals(evidence))
    good, safe = expected is not None and expected.value >= GOOD, expected is not None and expected.low >= SAFE
    if labels is None:
        findings, sure = refusals, good and safe and evidence.shift != ONE_BEARING
    else:
        rate = labels.rate
        confirmed = rate.value == 1 and good and (labels.recordings >= ENOUGH or safe)
        sure = rate.low >= SAFE or confirmed
        severity: Severity = "alarm" if rate.high < SAFE else "remark"
        findings = [Finding("labelled", severity, {"right": labels.right, "recordings": labels.recordings})]
        if rate.low < SAFE or labels.classes < 2:
            findings += refusals
        if not confirmed or labels.recordings >= ENOUGH:  # fewer, all right, say no more than was known before
            expected = rate
    if highest(findings) != "alarm":
        if not sure:
            findings.append(Finding("label recordings", "check", {"recordings": list(evidence.uncertain)}))
        if evidence.shift is None:
            findings.append(Finding("no check models", "remark"))
        elif labels is None:
            findings.append(Finding("tested on", "remark", {"shift": evidence.shift}))
        if not evidence.calibrated and labels is None:
            findings.append(Finding("not calibrated", "remark"))
    action = OF_MODEL[highest(findings)]
    if action == REFUSE and expected is not None and expected.value >= SAFE:
        expected = None  # what speaks against the model speaks against the estimate too
    interval = None if expected is None else (expected.low, expected.high)
    value = None if expected is None else expected.value
    return Decision(action, value, interval, sentences(findings), tuple(findings))


def _refusals(evidence: ModelEvidence) -> Iterator[Finding]:
    """Why a model is not to be used; nothing where nothing speaks against it."""
    if not evidence.finite:
        yield Finding("training broke down", "alarm")
        return
    source, physics, expected = evidence.source, evidence.physics, evidence.expected
    chance = 1 / max(evidence.classes, 1)
    if source is not None and evidence.classes > 1:
        beyond = source.low > chance or evidence.source_windows < FEWEST_WINDOWS
        if not (source.value >= chance + LEARNT * (1 - chance) and beyond):
            yield Finding("nothing learnt", "alarm", {"right": source.value, "chance": chance})
    if evidence.one_class is not None:
        yield Finding("one class", "alarm", {"label": evidence.one_class})
    if physics is not None and 2 * len(physics.missed) > physics.compared >= FEWEST_COMPARED:
        yield Finding("outvoted", "alarm", {"missed": len(physics.missed), "compared": physics.compared})
    if expected is None:
        yield Finding("no confidence", "alarm")
    elif not (expected.value if evidence.median is None else evidence.median) >= POOR:
        yield Finding("low accuracy", "alarm")


def choose_model(
    recipe: str,
    adapted: ModelEvidence,
    unadapted: ModelEvidence,
    supported: bool | None,
    agreement: Sequence[float | None],
) -> tuple[bool, str]:
    """Whether the adapted model is saved, and why: it is, unless it broke down or check models agree less with it than
    with the unadapted one. A recipe that decides itself whether to adapt (`supported`) is believed: on public and
    simulated recordings it never lost to the unadapted network.
    """
    broken, plain_broken = (not model.finite or model.one_class is not None for model in (adapted, unadapted))
    if broken and not plain_broken:
        return False, f"{recipe} {'names one class only' if adapted.finite else 'broke down'}"
    if supported:
        return True, "the target's recordings support adapting"
    mine, alone = agreement
    if mine is None or alone is None or plain_broken:
        return True, "nothing speaks for the unadapted model"
    shares = f"check models agree with the adapted model on {100 * mine:.0f} % of windows, with the unadapted on"
    return mine >= alone - SLACK, f"{shares} {100 * alone:.0f} %"
