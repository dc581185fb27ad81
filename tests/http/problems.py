"""How refusals are read: each is a problem of the catalogue."""

import httpx

from fedclust.wire.errors import CATALOGUE, Problem

#: What senders write where it does not belong, and no answer repeats.
MARK = "Zx9SecretValueZx9"


def problem(response: httpx.Response, *slugs: str) -> Problem:
    """Return a refusal, which has to be one of these."""
    assert response.headers["Content-Type"] == "application/problem+json", response.text
    read = Problem.model_validate_json(response.content)
    assert read.slug in slugs, response.text
    assert read.status == response.status_code == CATALOGUE[read.slug][0]
    assert read.request_id == response.headers["Fedclust-Request-Id"]
    assert MARK not in response.text
    return read
