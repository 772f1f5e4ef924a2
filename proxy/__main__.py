"""`python -m proxy` is the command `dragoman`, for places where the command is not on the path."""

from proxy.cli import main

if __name__ == "__main__":
    main()
