"""Evidence for a change, written from the sources and slowly: Vovk and Sellke's bet as the integral it is, and the CUSUM
as a maximum over all pasts (Page 1954).
"""

from scipy.integrate import quad


def bet(p):
    """∫ from 0 to 1 of ε p^(ε−1) dε."""
    return quad(lambda epsilon: epsilon * p ** (epsilon - 1), 0, 1)[0]


def cusum(logarithms):
    """The largest sum of logarithms over all pasts that end now, the empty one included."""
    return max(sum(logarithms[start:]) for start in range(len(logarithms) + 1))
