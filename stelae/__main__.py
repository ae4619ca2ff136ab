"""``python -m stelae``: the command line."""

from stelae.cli.app import main

if __name__ == "__main__":
    main()
