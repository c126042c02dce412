"""How well the lines of a bearing are found that nobody names: CWRU and HIT-SM, both with 6205 bearings.

python benchmarks/families.py DATA
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from bearcat.data.datasets.benches import BENCHES
from bearcat.diagnosis.families import MATCH, find_family, last_family_order
from bearcat.diagnosis.physics import FAULTS, state_of
from bearcat.diagnosis.spectra import EnvelopeSpectra
from bearcat.trust.decision import FAMILY

counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
for bench, (kind, name, prefix) in BENCHES.items():
    folder = Path(sys.argv[1]) / name
    for entry in kind(root=folder).catalogue().entries if folder.is_dir() else ():
        if not entry.domain.startswith(prefix):
            continue
        recording, state = entry.read(), state_of(str(entry.label)) or "?"
        if recording.rate is None or recording.rpm is None or recording.bearing is None:
            continue
        spectra = EnvelopeSpectra(recording.rate, recording.rpm, last_family_order(recording.rate, recording.rpm))
        spectra.add(recording.signal)
        family = find_family(spectra.average(), recording.rate, recording.rpm)
        found = counts[bench, state]
        found["recordings"] += 1
        alarm = family.level >= FAMILY and family.shaft_multiple is None
        found["alarms"] += alarm
        if state in FAULTS and alarm:
            name_of, times, _ = FAULTS[state]
            right = abs(family.order / (times * recording.bearing.orders()[name_of]) - 1) <= MATCH
            names = family.bearings[state]
            found["right order"] += right
            found["6205 among the candidates"] += "6205" in names
            found["6205 among the first five"] += "6205" in names[:5]
            found["candidates"] += len(names)
        if "--all" in sys.argv[2:]:
            print(entry.origin, entry.label, family.sentence)
for (bench, state), found in counts.items():
    print(bench, state, dict(found))
