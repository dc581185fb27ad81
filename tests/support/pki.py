"""A private certificate authority, made for one test run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pair:
    """A certificate chain and its private key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self.bundle = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.bundle))

    def issue(self, *identities: str, name: str, expired: bool = False) -> Pair:
        """Return a certificate for host names and addresses (or a client's name)."""
        now = datetime.now(UTC)
        issued = self._ca.issue_cert(
            *identities,
            common_name=name,
            not_before=now - timedelta(days=20),
            not_after=now - timedelta(days=10) if expired else now + timedelta(days=10),
        )
        pair = Pair(self._directory / f"{name}.cert.pem", self._directory / f"{name}.key.pem")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        pair.cert.write_bytes(chain)
        issued.private_key_pem.write_to_path(str(pair.key))
        pair.key.chmod(0o600)
        return pair
