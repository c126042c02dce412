"""Evidence for a change, written from the sources and slowly: Vovk and Sellke's bet as the integral it is, the CUSUM as a
maximum over all pasts (Page 1954), a conformal p-value by counting (Vovk, Gammerman and Shafer 2005).
"""

import numpy as np


def bet(p):
    """∫ from 0 to 1 of ε p^(ε−1) dε, by Simpson's rule."""
    epsilon = np.linspace(0, 1, 20_001)
    values = epsilon * p ** (epsilon - 1)
    weights = np.where(np.arange(epsilon.size) % 2, 4.0, 2.0)
    weights[[0, -1]] = 1.0
    return float((weights * values).sum() / 60_000)


def p_value(score, baseline):
    """The share of the baseline and the new score itself that is at least as large."""
    return (sum(1 for own in baseline if own >= score) + 1) / (len(baseline) + 1)


def cusum(logarithms):
    """The largest sum of logarithms over all pasts that end now, the empty one included."""
    return max(sum(logarithms[start:]) for start in range(len(logarithms) + 1))
