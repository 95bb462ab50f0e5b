"""`python -m metasched`."""

from metasched.cli import main

if __name__ == "__main__":
    main()
