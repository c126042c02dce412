"""Diagnosis from physics alone: recording, speed and bearing → state and evidence, without training (docs/diagnose.md).

spectra.py: envelope spectra by band and order; evidence.py: levels at fault orders; physical.py: the diagnosis by
coefficients.json, its words, and whether it contradicts a model.
"""
