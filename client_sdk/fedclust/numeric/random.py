"""Random generators derived from the session's seed and their purpose.

Sites do not share a generator: results would depend on the order in which answers arrive.
"""

import hashlib

import numpy as np


def _generator(*parts: str | int) -> np.random.Generator:
    # The unit separator cannot occur in a slug or a number, so different parts never collide.
    text = "\x1f".join(str(part) for part in ("fedclust", *parts))
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def site_rng(seed: int, site: str, round_number: int) -> np.random.Generator:
    """Return a site's generator for one round. Never for noise: the coordinator knows the seed."""
    return _generator("site", seed, site, round_number)


def server_rng(seed: int, purpose: str) -> np.random.Generator:
    """Return the coordinator's generator for a named purpose."""
    return _generator("server", seed, purpose)
