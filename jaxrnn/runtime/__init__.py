"""What runs a pure step: one live stream, pools of them, and compiled files."""
