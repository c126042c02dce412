"""CAT* against source-only on simulated bearings: accuracy, ECE and share of pseudo-labels over epochs, in one picture.

python examples/cat_in_one_page.py        # half a minute; writes cat.png
"""

from matplotlib.figure import Figure

import bearcat
from bearcat.cat import CAT

settings = {"seconds": 0.8, "severities": 4, "faults": "inner,outer"}
X, y, domain = bearcat.load("simulated", window=256, settings=settings)
source, target = domain == "N15_M07_F10", domain == "N09_M07_F10"

figure = Figure(figsize=(10, 3), layout="constrained")
panels = dict(zip(("target_accuracy", "target_ece", "pseudo_label_share"), figure.subplots(1, 3), strict=True))
for method in ("source-only", "CAT*-Temperature"):
    model = CAT(method, epochs=20, input="frequency").fit(X[source], y[source], X[target], y[target])
    print(f"{method}: target accuracy {model.curves['target_accuracy'][-1]:.0%}")
    for name, panel in panels.items():
        panel.plot(model.curves.get(name, []), label=method)  # source-only has no pseudo-labels
        panel.set(xlabel="epoch", title=name.replace("_", " "), xlim=(0, 20), ylim=(0, 1))
panels["target_accuracy"].legend(frameon=False)
figure.savefig("cat.png", dpi=120)
