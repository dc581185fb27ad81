"""Who the caller is, and what each method discloses."""

from typing import Annotated

from fastapi import Path

from fedclust import rounds
from fedclust.methods.registry import METHODS
from fedclust.schema.method import AnyMethod
from fedclust.wire.models import AlgorithmInfo, Page, PhaseInfo, WhoAmI
from fedclust_service.domain.access import absent
from fedclust_service.http.api_route import api_router
from fedclust_service.http.dependencies import Authenticated, CallerOf, CursorOf, LimitOf
from fedclust_service.usecases import principals
from fedclust_service.usecases.access_queries import page_of, show

router = api_router(tags=["about"])


@router.get("/v1/whoami", summary="The account of a token")
def whoami(caller: CallerOf) -> WhoAmI:
    """Role, name and expiry of the token; versions of server and protocol."""
    return principals.whoami(*caller)


@router.get(
    "/v1/algorithms", dependencies=[Authenticated], summary="Methods that this coordinator runs"
)
def list_algorithms(limit: LimitOf = 50, cursor: CursorOf = None) -> Page[AlgorithmInfo]:
    """Options as JSON Schema, phases, and line by line what leaves a site in each."""
    rest = [METHODS[name] for name in sorted(METHODS) if cursor is None or name > cursor]
    return page_of(rest, limit, "name", _describe)


@router.get(
    "/v1/algorithms/{algorithm}",
    dependencies=[Authenticated],
    summary="One method: options, phases, disclosures, citation",
)
def get_algorithm(
    algorithm: Annotated[str, Path(description="The method's name.")],
) -> AlgorithmInfo:
    """What leaves a site and when, for a data protection officer."""
    method = METHODS.get(algorithm)
    if method is None:
        raise absent("method")
    return _describe(method)


def _describe(method: AnyMethod) -> AlgorithmInfo:
    phases = tuple(show(PhaseInfo, phase) for phase in rounds.all_phases(method))
    schema = method.options.model_json_schema()
    return show(AlgorithmInfo, method, config_schema=schema, phases=phases)
