"""Configuration files: where each value stands, what may stand there, and errors that name the place."""
