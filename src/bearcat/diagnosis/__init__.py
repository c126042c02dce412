"""From evidence to the diagnosis of a recording.

spectra.py: envelope spectra by band and order; evidence.py: levels at fault lines; physics.py: what they say of the
bearing, by coefficients.json (docs/diagnose.md); recording.py: the one diagnosis that everything prints.
"""
