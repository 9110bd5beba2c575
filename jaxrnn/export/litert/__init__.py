"""Export as LiteRT files."""
