"""What every caller may read of the audit trail."""

from typing import Annotated

from fastapi import Path

from fedclust.wire.models import AuditHead
from fedclust_service.http.api_route import api_router
from fedclust_service.http.dependencies import CallerOf
from fedclust_service.usecases import audit

router = api_router(tags=["audit"])


@router.get("/v1/audit/heads/{number}", summary="The hash of a sealed audit entry")
def get_audit_head(
    caller: CallerOf,
    number: Annotated[
        int, Path(ge=1, le=2**53 - 1, description="The entry's number in the chain, from 1.")
    ],
) -> AuditHead:
    """Any token. Sites note number and hash of the last sealed entry with each submission
    (`Fedclust-Audit-Head`). If that entry now has another hash or is gone, the trail was rewritten
    or cut. The answer contains only the hash.
    """
    return audit.head_at(*caller, number)
