"""Runs: what is to be trained, where its results are kept, and who trains it."""
