"""Disclosure control: what may leave a site, and the record of what did."""
