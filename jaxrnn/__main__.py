"""``python -m jaxrnn`` is the command ``jaxrnn``."""

from jaxrnn.cli import main

if __name__ == "__main__":
    main(prog_name="jaxrnn")
