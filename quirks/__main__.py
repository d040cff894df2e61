"""The entry point of `python -m quirks`."""

from quirks.runner import main

if __name__ == "__main__":
    main()
