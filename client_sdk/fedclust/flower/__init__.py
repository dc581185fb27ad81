"""Run a session on Flower: ``site`` is the ClientApp, ``server`` the ServerApp.

Needs ``pip install "fedclust[flower]"``. Nothing else in fedclust imports this package. See
docs/details/engines.md.
"""
