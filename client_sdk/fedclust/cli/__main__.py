"""``python -m fedclust.cli``, where scripts are not on the path."""

from fedclust.cli.main import main

main()
