"""Sites and an analyst at a running coordinator, and what it takes to run a session through.

``Consortium.found`` registers them over HTTP with the operator's token. ``run`` lets every site
take part, each in a thread of its own through the SDK; ``Command`` is a site as a real process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedclust.client import Client
from fedclust.client.http import ConnectionOptions
from fedclust.result.session_result import SessionResult
from fedclust.site import Site
from fedclust.wire.models import Participation, ResultDocument, SessionInfo
from support import processes
from support.definitions import session_body
from support.processes import COMMAND, clean_environment
from support.timeouts import TIMEOUT_S


@dataclass(frozen=True)
class Consortium:
    """Who may do what at a coordinator."""

    url: str
    analyst_token: str
    site_tokens: dict[str, str]
    options: ConnectionOptions

    @classmethod
    def found(
        cls,
        url: str,
        operator_token: str,
        sites: tuple[str, ...],
        options: ConnectionOptions | None = None,
    ) -> Consortium:
        """Register an analyst and sites, with a token each."""
        options = options or ConnectionOptions(timeout_s=TIMEOUT_S, give_up_after_s=TIMEOUT_S)
        with Client(url, operator_token, options) as operator:
            operator.add("analysts", "ada")
            tokens = {}
            for name in sites:
                operator.add("sites", name)
                tokens[name] = operator.issue_token("sites", name).token
            analyst = operator.issue_token("analysts", "ada").token
        return cls(url, analyst, tokens, options)

    def at(self, url: str) -> Consortium:
        """Return the same people, reaching the coordinator at another address."""
        return replace(self, url=url)

    def analyst(self) -> Client:
        return Client(self.url, self.analyst_token, self.options)

    def create(self, name: str, n_features: int, **definition: Any) -> SessionInfo:
        """Create a lloyd session of all sites, unless ``definition`` says otherwise."""
        sites = sorted(self.site_tokens)
        asked = {"name": name, "algorithm": "lloyd", "sites": sites, "seed": 7, **definition}
        with self.analyst() as analyst:
            return analyst.create_session(session_body(*declared(n_features), **asked))

    def result(self, session: str) -> ResultDocument:
        """Return the result as the analyst reads it."""
        with self.analyst() as analyst:
            return analyst.result_document(session)

    def run(
        self, session: str, data: Mapping[str, Any], journals: Path, **options: Any
    ) -> dict[str, SessionResult]:
        """Let every site take part at once; what each ends with, or an error of one."""

        def take_part(name: str) -> SessionResult:
            with Site(
                self.url,
                token=self.site_tokens[name],
                state_dir=journals / name,
                ca_bundle=self.options.ca_bundle,
                proxy=self.options.proxy,
            ) as site:
                return site.participate(session, data[name], **{"consent": True, **options})

        with ThreadPoolExecutor(len(data)) as pool:
            return dict(zip(data, pool.map(take_part, data), strict=True))


def participation_in(info: SessionInfo, features: Sequence[str]) -> Participation:
    """Return what a site with these features sends to join a session."""
    return Participation(
        definition_sha256=info.definition_sha256,
        features=tuple(features),
        size_band="50-199",
        sdk_version="0",
        methods={info.definition.algorithm: (info.definition.method_version,)},
        engine=(info.definition.engine_version,),
    )


def columns(n: int) -> list[str]:
    """Return the feature names that sessions of these tests have."""
    return [f"x{index}" for index in range(n)]


def declared(n: int, lower: float = -1e3, upper: float = 2e4) -> list[dict[str, Any]]:
    """Return these features with bounds, which some methods need."""
    return [{"name": name, "lower": lower, "upper": upper} for name in columns(n)]


def write_csv(path: Path, X: NDArray[np.float64], has: Sequence[int] | None = None) -> None:
    """Write rows with a record number, of all columns or of some; they read back bit for bit."""
    kept = list(range(X.shape[1]) if has is None else has)
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [f"{path.parent.name}-{index}" for index in range(len(X))]
    rows = pd.DataFrame(X[:, kept], ids, [f"x{column}" for column in kept])
    rows.to_csv(path, index_label="record")


def read_labels(path: Path) -> NDArray[np.int64]:
    """Read a labels file, in the order of its rows."""
    return pd.read_csv(path).iloc[:, 1].to_numpy(np.int64)


class Command:
    """``fedclust participate`` as a process that can be killed and started again."""

    def __init__(self, consortium: Consortium, session: str, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        token = directory / "token"
        token.write_text(consortium.site_tokens[name] + "\n", "utf-8")
        token.chmod(0o600)
        self._command = [
            *(sys.executable, "-c", COMMAND, "participate", session),
            *("--coordinator", consortium.url, "--token-file", "token"),
            *("--data", "rows.csv", "--id-column", "record"),
            *("--labels-out", "labels.csv", "--result-out", "result.fedclust", "--yes"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = processes.popen(
                self._command,
                cwd=self.directory,
                env=clean_environment({"FEDCLUST_STATE_DIR": str(self.directory / "state")}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)
