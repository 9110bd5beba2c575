"""The version of the package, for what says who made it: files, runs, reports."""

__version__ = "0.1.0"
