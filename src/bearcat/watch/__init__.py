"""Machines over time: recordings as they come, what is usual for each point, and alarms at a stated rate.

>>> bearcat.watch("plant", "plant.db")            # the package itself can be called: it is `watching.watch` then
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """`bearcat.watch` is a function of `bearcat`, and the package in which its parts are."""

    @property
    def __call__(self) -> Callable[..., Any]:
        from bearcat.watch.watching import watch

        return watch


sys.modules[__name__].__class__ = CallableModule
