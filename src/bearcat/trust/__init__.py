"""How far to trust predictions on a target without labels (docs/trust.md). Numpy in, numbers out; no torch."""
