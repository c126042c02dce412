"""The paper's networks, for a stack of runs at once."""

from bearcat.models.networks import PRECISIONS, DomainClassifier, Encoder, Student, fast_path, initialise, use_path

__all__ = ["PRECISIONS", "DomainClassifier", "Encoder", "Student", "fast_path", "initialise", "use_path"]
