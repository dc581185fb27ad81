"""HTTPS as in a hospital: a private CA, a proxy with a password, client certificates, bad ones."""

import base64
import socket
import sys
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclust.client import Client
from fedclust.client.http import ConnectionOptions
from fedclust.wire.errors import ProxyError, TLSError
from support import processes
from support.certificates import Authority, self_signed
from support.consortium import Consortium
from support.processes import COMMAND, clean_environment
from support.proxies import TcpProxy, read_head
from support.server import ServerProcess, running_server
from support.timeouts import TIMEOUT_S

SITES = ("north", "south", "west")
#: A test fails in seconds where it would otherwise wait for a coordinator to come back.
SOON = 1.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


def tls_server(
    directory: Path,
    authority: Authority,
    *,
    host: str = "localhost",
    expired: bool = False,
    client_ca: Path | None = None,
) -> AbstractContextManager[ServerProcess]:
    """Run a coordinator with a certificate of the authority."""
    pair = authority.issue(host, name="server", expired=expired)
    flags = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key)]
    if client_ca is not None:
        flags += ["--tls-client-ca", str(client_ca)]
    return running_server(directory, *flags)


class ForwardProxy(TcpProxy):
    """A hospital's forward proxy: CONNECT only, with a user name and a password.

    ``tunnels`` lists the targets that were asked for, in order; ``refused`` counts the refusals.
    """

    def __init__(self, user: str, password: str) -> None:
        self._expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.tunnels: list[str] = []
        self.refused = 0
        super().__init__()
        self.address = f"127.0.0.1:{self.port}"

    def connect(self, client: socket.socket) -> socket.socket:
        first, *lines = read_head(client).decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value for name, _, value in (s.partition(": ") for s in lines)}
        if method != "CONNECT":
            client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            raise ConnectionRefusedError
        if headers.get("proxy-authorization") != self._expected:
            self.refused += 1
            client.sendall(
                b"HTTP/1.1 407 Proxy Authentication Required\r\n"
                b"Proxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
            )
            raise ConnectionRefusedError
        self.tunnels.append(target)
        host, _, port = target.rpartition(":")
        server = socket.create_connection((host, int(port)), TIMEOUT_S)
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return server


def whoami(server: ServerProcess, options: ConnectionOptions, host: str = "localhost") -> str:
    url = f"https://{host}:{server.port}"
    with Client(url, server.operator_token, options) as client:
        return client.whoami().role


def test_a_session_over_https_through_a_proxy_that_wants_a_password(
    tmp_path: Path, authority: Authority
) -> None:
    rng = np.random.default_rng(3)
    data = {name: rng.normal(size=(40, 3)) + 6 * rng.integers(0, 2, (40, 1)) for name in SITES}
    with (
        tls_server(tmp_path / "server", authority) as server,
        closing(ForwardProxy("clinic", "s3cret")) as proxy,
    ):
        options = ConnectionOptions(
            ca_bundle=authority.bundle,
            proxy=f"http://clinic:s3cret@{proxy.address}",
            give_up_after_s=SOON,
        )
        url = f"https://localhost:{server.port}"
        consortium = Consortium.found(url, server.operator_token, SITES, options)
        consortium.create("over-tls", 3, config={"n_clusters": 2})
        results = consortium.run("over-tls", data, tmp_path / "journals")

        assert all(len(results[name].labels_) == 40 for name in SITES)
        assert set(proxy.tunnels) == {f"localhost:{server.port}"}
        with pytest.raises(ProxyError) as refused:
            whoami(server, replace(options, proxy=f"http://clinic:wrong@{proxy.address}"))
        assert "wrong" not in str(refused.value)
        assert proxy.refused > 0


def test_a_certificate_for_another_host_is_refused(tmp_path: Path, authority: Authority) -> None:
    options = ConnectionOptions(ca_bundle=authority.bundle, give_up_after_s=SOON)
    with (
        tls_server(tmp_path / "server", authority, host="elsewhere.example") as server,
        pytest.raises(TLSError, match=r"[Hh]ostname"),
    ):
        whoami(server, options)


def test_a_required_client_certificate(tmp_path: Path, authority: Authority) -> None:
    clients = Authority(tmp_path / "clients", "clients")
    mine = clients.issue("north@example.org", name="north")
    foreign = authority.issue("south@example.org", name="south")
    with tls_server(tmp_path / "server", authority, client_ca=clients.bundle) as server:
        none = ConnectionOptions(ca_bundle=authority.bundle, give_up_after_s=SOON)
        shown = replace(none, client_cert=mine.cert, client_key=mine.key, give_up_after_s=TIMEOUT_S)
        assert whoami(server, shown) == "operator"
        wrong = replace(none, client_cert=foreign.cert, client_key=foreign.key)
        for options in (none, wrong):
            with pytest.raises(TLSError):
                whoami(server, options)


def participate(url: str, place: Path, *flags: str) -> tuple[int, str]:
    """Run a site's command that tries once; return its exit code and standard error."""
    place.mkdir()
    rows = place / "rows.csv"
    rows.write_text("age\n40\n", "utf-8")
    command = [sys.executable, "-c", COMMAND, "participate", "heart", "--data", str(rows)]
    once = ("--coordinator", url, "--give-up-after", "0", *flags)
    env = {"FEDCLUST_TOKEN": "fcs_none", "FEDCLUST_STATE_DIR": str(place / "state")}
    done = processes.run([*command, *once], env=clean_environment(env))
    return done.returncode, done.stderr


def test_one_line_with_the_remedy_where_tls_fails(tmp_path: Path, authority: Authority) -> None:
    alone = self_signed(tmp_path / "alone", "localhost")
    flags = ("--tls-cert", str(alone.cert), "--tls-key", str(alone.key))
    with running_server(tmp_path / "alone" / "server", *flags) as server:
        url = f"https://localhost:{server.port}"
        code, said = participate(url, tmp_path / "untrusted")
        assert (code, said.count("\n")) == (6, 1)
        assert "self-signed" in said
        assert "--ca-bundle" in said
        code, said = participate(url, tmp_path / "trusted", "--ca-bundle", str(alone.cert))
        assert code == 5, said  # the token is none: it was asked for one
        code, said = participate(url.replace("https", "http"), tmp_path / "plain")
        assert (code, said.count("\n")) == (6, 1)
        assert "use https://" in said
    with tls_server(tmp_path / "private", authority) as server:
        code, said = participate(f"https://localhost:{server.port}", tmp_path / "private-ca")
        assert (code, said.count("\n")) == (6, 1)
        assert "--ca-bundle" in said
    with tls_server(tmp_path / "expired", authority, expired=True) as server:
        bundle = ("--ca-bundle", str(authority.bundle))
        code, said = participate(f"https://localhost:{server.port}", tmp_path / "ended", *bundle)
        assert (code, said.count("\n")) == (6, 1)
        assert "expired" in said
        assert "--ca-bundle" not in said
    with running_server(tmp_path / "clear") as server:
        code, said = participate(f"https://localhost:{server.port}", tmp_path / "no-tls")
        assert (code, said.count("\n")) == (6, 1)
        assert "does not speak TLS" in said
        assert "http:// on this machine" in said
