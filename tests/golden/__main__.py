"""`python -m tests.golden compare [--exact]` and `python -m tests.golden make`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.conftest import REAL
from tests.golden.compare import differences, store, stored


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Results of fixed inputs.")
    parser.add_argument("action", choices=("compare", "make"))
    parser.add_argument("--exact", action="store_true", help="Compare bit for bit.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"BEARCAT_CACHE": f"{place}/cache", "BEARCAT_DATA": f"{place}/data"}
        from tests.golden import commands, training

        folder = Path(place) / "golden"
        folder.mkdir()
        found = {"training": training.results(), "commands": commands.run(folder, REAL)}
    lines = []
    for name, values in found.items():
        if asked.action == "make":
            store(name, values)
        else:
            lines += differences(stored(name), values, asked.exact)
    print("\n".join(lines) or "no difference")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
