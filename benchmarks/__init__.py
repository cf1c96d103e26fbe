"""The measuring harness: see run.py (what is run), guard.py (what is checked) and report.py (what is shown)."""
