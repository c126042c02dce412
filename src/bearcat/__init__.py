"""Bearing fault diagnosis under domain shift."""

__version__ = "0.1.0"
