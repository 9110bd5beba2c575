"""Functions over time written at random, each streamed and held against itself: exact, or refused for a good reason.

``python -m tests.stream_fuzzing --programs 1000 --seed 1`` tries many; `tests/test_stream_random.py` some hundreds.
"""
