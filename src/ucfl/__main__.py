"""``python -m ucfl``."""

from ucfl.cli import main

main()
