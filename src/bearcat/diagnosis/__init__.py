"""From evidence to the diagnosis of a recording: lines.py, physics.py (docs/diagnose.md), and the one Diagnosis that
everything prints (recording.py).
"""
