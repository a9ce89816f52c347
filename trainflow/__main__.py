"""``python -m trainflow``: the same as the ``trainflow`` command."""

from trainflow.cli.main import main

main()
