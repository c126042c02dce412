"""The paper's networks, for a stack of runs at once."""

from bearcat.models.networks import DomainClassifier, Encoder, Student, initialise

__all__ = ["DomainClassifier", "Encoder", "Student", "initialise"]
