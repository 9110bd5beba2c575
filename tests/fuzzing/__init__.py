"""Files that no exporter wrote, and what becomes of them: a result, or one of the project's own errors.

``python -m tests.fuzzing --minutes 10 --seed 1`` runs for a while and keeps what it finds; `test_fuzzing.py` runs a
fixed number of cases. A case is known by its kind, seed and number, and is the same every time.
"""
