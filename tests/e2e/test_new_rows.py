"""New rows at a site: with the result alone, or with what the site remembers."""

from typing import Any

import numpy as np
import pytest

from fedclust import simulate
from support.consortium import declared
from support.method_variants import ALL, IDS, TRIED
from support.site_rows import blobs


@pytest.mark.parametrize(("method", "options"), ALL, ids=IDS)
def test_a_site_labels_new_rows_as_it_labelled_its_own(
    method: str, options: dict[str, Any]
) -> None:
    sites = blobs(np.array([[0.0, 0.0], [40.0, 30.0]]), (40, 40, 40), spread=1.0)
    config = {"n_clusters": 2, **options}
    result = simulate(
        *(method, sites), config=config, features=declared(2), policy={"scaling": "none"}, seed=1
    )
    for name, X in sites.items():
        found = result.predict(X + 1e-3, site=name)
        assert (found >= 0).all()
        assert np.mean(found == result.labels_[name]) > 0.98
    alone = result.predict(sites["a"])
    needs_site = options in TRIED[method].own_only
    assert (alone == -1).all() if needs_site else (alone >= 0).all()
