"""The audit trail's sealed head in answers to sites, which note it beside what they sent."""

from __future__ import annotations

from fedclust_service.orchestration.coordinator import Coordinator

AUDIT_HEAD = "Fedclust-Audit-Head"
SEALED_HEAD = {
    AUDIT_HEAD: "`NUMBER:HASH` of the last sealed entry of the audit trail: to be noted beside "
    "what was sent. Absent before the first."
}


def with_head(co: Coordinator, headers: dict[str, str]) -> dict[str, str]:
    """Add the sealed head as this process knows it: it costs no look into the database."""
    head = co.sealer.head
    return headers if head is None or not head.number else {**headers, AUDIT_HEAD: str(head)}
