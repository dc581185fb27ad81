"""The ``fedclust`` command.

Exit codes: 0 done; 1 unexpected; 2 usage; 3 the data do not fit; 4 no consent; 5 the coordinator
refused; 6 the coordinator cannot be reached, or TLS or the proxy refused; 7 the session failed,
was cancelled, or goes on without this site; 8 journal or ledger; 9 the site's own disclosure check
refused; 130 interrupted. Results go to standard output, everything else to standard error.
"""
