"""`python -m dragoman` is the command `dragoman`, for places where it is not on the path."""

from proxy.cli import main

if __name__ == "__main__":
    main()
