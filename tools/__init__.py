"""What the repository makes for its documentation, from the library. None of it is installed."""
