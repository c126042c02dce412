"""How far to trust predictions on a target without labels."""
