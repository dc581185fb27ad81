"""A private certificate authority, made for one test run."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate chain and its private key, as PEM files."""

    cert: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return what a server needs to show it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context


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


def self_signed(directory: Path, host: str) -> Pair:
    """Return a certificate that vouches for itself, as a first installation may have."""
    directory.mkdir(parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=10))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pair = Pair(directory / "self.cert.pem", directory / "self.key.pem")
    pair.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    pair.key.chmod(0o600)
    return pair
