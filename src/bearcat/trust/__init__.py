"""How far to trust predictions on a target without labels (docs/trust.md). Numpy in, numbers out; no torch.

accuracy.py estimates how many predictions are right, familiarity.py whether a window resembles the adapted target,
verdict.py turns both into a record, and pooling.py turns the windows of a recording into one diagnosis.
"""
