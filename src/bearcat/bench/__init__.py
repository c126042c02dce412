"""Grids of runs: planned from a file, kept in a store that loses nothing, executed where there is a machine."""
