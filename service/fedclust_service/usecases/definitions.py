"""The frozen definitions of stored sessions, and what the engine needs of them."""

import functools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedclust.definition import DefinitionError, plan_of, read_definition
from fedclust.rounds import Plan
from fedclust.wire import codec
from fedclust.wire.models import Definition
from fedclust_service.domain.access import Refusal
from fedclust_service.domain.session import Participation, Session
from fedclust_service.store import DataDamaged


# Exceptions are not cached, so damage is found again each time.
@functools.lru_cache(maxsize=64)
def _read_verified(definition: bytes, sha256: str) -> Definition:
    if codec.sha256(definition) != sha256:
        raise DataDamaged("definition")
    return read_definition(definition)


def definition_of(session: Session) -> Definition:
    """Return the definition that sites consented to.

    DataDamaged if the stored bytes are others; DefinitionError if an earlier version wrote the
    definition in a form that this version does not read.
    """
    return _read_verified(session.definition, session.definition_sha256)


@functools.lru_cache(maxsize=64)
def _plan(definition: bytes, sha256: str) -> Plan:
    return plan_of(_read_verified(definition, sha256))


def plan_for(session: Session) -> Plan:
    """Return the engine's plan; DefinitionError if this program does not run the session's method.

    Raises as `definition_of`.
    """
    return _plan(session.definition, session.definition_sha256)


def plan_or_refuse(session: Session) -> Plan:
    """Return the plan as :func:`plan_for` does, with a refusal in place of DefinitionError."""
    try:
        return plan_for(session)
    except DefinitionError as error:
        raise Refusal(
            "unavailable",
            "The coordinator does not run the versions that this session fixes; its operator "
            "must install a version of fedclust that does.",
        ) from error


def outdated() -> Refusal:
    """Return the refusal of a request for a session whose definition this version does not read."""
    return Refusal(
        "version-unsupported",
        "An earlier version of fedclust made this session, and this coordinator does not read its "
        "definition. Create the session again. Saved results (.fedclust) are read by the version "
        "that saved them.",
    )


def masks_of(plan: Plan, participations: Iterable[Participation]) -> dict[str, NDArray[np.bool_]]:
    """Return for each site that ever joined which of the session's features (d,) it has."""
    return {each.site: plan.has_features(each.features) for each in participations if each.features}


def silent_sites(plan: Plan, participations: Iterable[Participation]) -> tuple[str, ...]:
    """Return the sites that joined without outcomes, or without points for them, sorted."""
    return tuple(
        sorted(
            each.site
            for each in participations
            if each.points_short or (each.features and plan.lacks_outcomes(each.features))
        )
    )


def smallest_p(session_p: int, own: Participation) -> int:
    """Return the p that holds for a site: the larger of the session's and its own."""
    return max(session_p, own.min_group_size or 0)
