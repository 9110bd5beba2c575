"""Scripts for the documentation and the checks of the repository, which are not installed."""
