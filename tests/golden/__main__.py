"""`python -m tests.golden` lists what differs, bit for bit; `python -m tests.golden make` writes the results anew."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.conftest import REAL
from tests.golden.compare import differences, store, stored

with tempfile.TemporaryDirectory() as place:
    os.environ |= {"BEARCAT_CACHE": f"{place}/cache", "BEARCAT_DATA": f"{place}/data"}
    from tests.golden import commands, training

    results = {"training": training.results(), "commands": commands.run(Path(place, "golden"), REAL)}
for name, values in results.items():
    if sys.argv[1:] == ["make"]:
        store(name, values)
    print("\n".join(differences(stored(name), values, exact=True)) or f"{name}: no difference")
