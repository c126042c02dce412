"""Grids of runs: which there are, where their results are kept, and what runs them."""
