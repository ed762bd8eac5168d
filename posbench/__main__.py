"""python -m posbench."""

from posbench.cli import main

main()
