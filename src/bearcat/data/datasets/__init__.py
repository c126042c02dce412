"""One dataset a module."""
