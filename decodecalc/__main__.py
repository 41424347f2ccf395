"""`python -m decodecalc`."""

from decodecalc.cli import main

if __name__ == "__main__":
    main()
