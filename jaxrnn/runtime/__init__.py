"""Runners of a pure step: a live stream, pools of streams, and compiled files."""
