"""Fusion as docs/trust.md says it, in loops over states and features, from the plain values of a diagnosis."""

from __future__ import annotations

import math

FAULTS = ("inner race", "outer race", "ball")


def log_odds(shares: dict[str, float], fault: str) -> tuple[float, float]:
    """Any fault against healthy, and this fault against the likeliest, within ±8; −2 for a fault the model lacks."""
    faults = {name: share for name, share in shares.items() if name != "healthy"}
    any_fault = math.log((1 - shares["healthy"]) / shares["healthy"]) if "healthy" in shares else 0.0
    kind = math.log(faults[fault] / max(faults.values())) if fault in faults else -2.0
    return max(-8.0, min(8.0, any_fault)), max(-8.0, kind)


def fused(
    weights: dict[str, float], physics: dict | None, general: dict | None, network: dict | None, baseline: dict | None
) -> dict[str, float]:
    """Probabilities of healthy and the three faults; `network` has shares by state and the shift."""
    scores = {"healthy": 0.0}
    for fault in FAULTS:
        lines, score = 0.0, -math.log(3)
        if physics is not None:
            decibel = 10 / math.log(10)
            levels = [min(max(line / decibel, 0.0), 4.0) for line in physics["faults"][fault]["lines"]]
            lines += weights["excess"] * (sum(levels) / len(levels) - physics["reference_level"] / decibel)
            lines += weights["least"] * min(levels)
            lines += weights["sidebands"] * (physics["faults"][fault]["sidebands"] or 0.0) / decibel
            lines += weights["impulsive"] * math.log(max(physics["kurtosis"], 2.0) / 2.0)
            lines += weights["one"]
        if general is not None:
            any_fault, kind = log_odds(general["probabilities"], fault)
            lines += weights["general fault"] * any_fault + weights["general type"] * kind
        if baseline is not None:
            lines += weights["change"] * baseline["change"][fault] / (10 / math.log(10))
            lines += weights["impulsive change"] * baseline["impulsive"]
        if physics is not None:
            score += math.log(0.8 * math.exp(lines) + 0.2)
        if network is not None:
            far = "far" if network["shift"] == "machine" else "near"
            any_fault, kind = log_odds(network["shares"], fault)
            score += weights[f"{far} fault"] * any_fault + weights[f"{far} type"] * kind
        scores[fault] = score
    total = sum(math.exp(score) for score in scores.values())
    return {state: math.exp(score) / total for state, score in scores.items()}
