"""Files, stores, arrays in files, and the text of messages."""
