"""When a recording was made, by a name or a text: 2024-05-01T10-32-39, 20240501_103239, 1714559559.

>>> time_in("pump_2024-05-01T10-32-39Z")
1714559559.0
>>> is_time("2004.02.12.10.32.39"), is_time("pump_2024-05-01")
(True, False)
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

DATE = r"(?P<year>(?:19|20)\d\d)(?P<mark>[-._/]?)(?P<month>0[1-9]|1[0-2])(?P=mark)(?P<day>0[1-9]|[12]\d|3[01])"
CLOCK = (
    r"(?:[T /_.-]{0,3}(?P<hour>[01]\d|2[0-3])(?:[-:._hH]?(?P<minute>[0-5]\d)"
    r"(?:[-:._mM]?(?P<second>[0-5]\d)(?:[.,_](?P<part>\d{1,9}))?s?)?)?)?"
)
ZONE = r"(?P<zone>Z|(?P<sign>[+-])(?P<hours>0\d|1[0-4]):?(?P<minutes>00|15|30|45))?"
STAMP = re.compile(rf"(?<!\d){DATE}{CLOCK}{ZONE}(?!\d)")
EPOCH = re.compile(r"(?<!\d)(\d{10})(\d{3})?(?:[.,](\d{1,6}))?(?!\d)")  # seconds or milliseconds since 1970


def time_in(text: str, zone: tzinfo = UTC) -> float | None:
    """The time that a text holds, in seconds since 1970; None where it holds none."""
    for found in STAMP.finditer(text):
        groups = found.groupdict()
        year, month, day, hour, minute, second = (
            int(groups[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")
        )
        own = zone
        if groups["sign"]:
            away = timedelta(hours=int(groups["hours"]), minutes=int(groups["minutes"]))
            own = timezone(away if groups["sign"] == "+" else -away)
        elif groups["zone"]:
            own = UTC
        try:
            whole = datetime(year, month, day, hour, minute, second, tzinfo=own)
        except ValueError:  # 31 February
            continue
        return whole.timestamp() + float(f"0.{groups['part'] or 0}")
    if number := EPOCH.search(text):
        return int(number[1]) + int(number[2] or 0) / 1000 + float(f"0.{number[3] or 0}")
    return None


def is_time(text: str) -> bool:
    """Whether a text is a time and nothing else."""
    return bool(STAMP.fullmatch(text) or EPOCH.fullmatch(text))
