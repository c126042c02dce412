"""Encoders and networks, for a stack of runs at once."""
