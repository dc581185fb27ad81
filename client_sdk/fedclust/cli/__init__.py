"""The ``fedclust`` command: results go to standard output, everything else to standard error."""
