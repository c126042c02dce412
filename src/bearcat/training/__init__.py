"""Training: the loop, its batches and steps, and what it is evaluated by."""
