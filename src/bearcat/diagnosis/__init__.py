"""Diagnosis from physics alone: recording, speed and bearing → state and evidence, without training (docs/diagnose.md).

spectra.py: envelope spectra by band and order; evidence.py: levels at fault orders; classifier.py: what they say, by
coefficients.json; physical.py: the diagnosis, its words, and whether it contradicts a model.
"""
