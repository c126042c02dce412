"""Encoders and networks, for a stack of runs at once."""

from bearcat.models.networks import (
    PRECISIONS,
    DomainClassifier,
    Network,
    build_network,
    fast_path,
    initialise,
    path_of,
    restore,
    select_run,
    use_path,
)

__all__ = [
    "PRECISIONS", "DomainClassifier", "Network", "build_network", "fast_path", "initialise", "path_of", "restore",
    "select_run", "use_path",
]  # fmt: skip
