"""A typed client of protocol version 1, for operators, analysts and sites.

Every method is one request, :meth:`Client.result` two; the coordinator refuses what a role may not
do. :class:`fedclust.site.Site` uses it to take part in a session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from fedclust.client.http import ConnectionOptions, Http, Reply
from fedclust.client.token_file import choose_token
from fedclust.definition.study import StudyCreate, StudyInfo
from fedclust.result.session_result import SessionResult, read_result
from fedclust.schema.display import Listing
from fedclust.schema.errors import TaskRule
from fedclust.schema.model import Model
from fedclust.schema.states import SessionState
from fedclust.wire import codec, models
from fedclust.wire.errors import ProtocolError
from fedclust.wire.submissions import BINARY

M = TypeVar("M", bound=Model)
Kind = Literal["sites", "analysts", "operators"]


class Client:
    """Talks to one coordinator with one token.

    Parameters
    ----------
    url : str
        The coordinator's address, ``https://host[:port]``.
    token : str, optional
        Spaces and line breaks around it do not count.
    token_file : path, optional
        File with the token, instead of ``token``.
    options : ConnectionOptions, optional
        Certificates, proxy, patience.
    http : Http, optional
        Used instead of a new connection; for tests.

    Notes
    -----
    Methods name what they act on in the same way: ``kind`` is ``"sites"``, ``"analysts"`` or
    ``"operators"``, ``name`` an account of that kind, a study or a session, ``session`` and
    ``site`` a name, ``number`` that of a round, ``rule`` the one that a task breaks. Every method
    raises ``errors.CoordinatorError`` if the coordinator refuses, and ``errors.TransportError`` if
    no usable answer comes.

    Examples
    --------
    >>> with Client(url, token) as client:
    ...     session = client.session("heart-2026")
    ...     result = client.result("heart-2026")
    >>> session.state, len(result.cluster_centers_)
    ('completed', 2)
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        options: ConnectionOptions | None = None,
        *,
        token_file: str | os.PathLike[str] | None = None,
        http: Http | None = None,
    ) -> None:
        self._http = http or Http(url, choose_token(token, token_file) or "", options)
        self.url = self._http.url
        #: ``NUMBER:HASH`` of the last known sealed entry of the coordinator's audit trail.
        self.audit_head: str | None = None

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- who, and which methods -------------------------------------------------------------------

    def whoami(self) -> models.WhoAmI:
        """Return the account that the token belongs to."""
        return self._get(models.WhoAmI, "/v1/whoami")

    def algorithms(self) -> tuple[models.AlgorithmInfo, ...]:
        """Return the methods that the coordinator runs."""
        return tuple(self._pages(models.AlgorithmInfo, "/v1/algorithms"))

    def algorithm(self, name: str) -> models.AlgorithmInfo:
        """Return one method: options, phases, what each discloses."""
        return self._get(models.AlgorithmInfo, _path("algorithms", name))

    # --- sites, analysts and operators ------------------------------------------------------------

    def add(
        self, kind: Kind, name: str, title: str = "", *, email: str | None = None
    ) -> models.PrincipalInfo:
        """Register a site, an analyst or an operator.

        Parameters
        ----------
        title : str
        email : str, optional
            Address for notifications.
        """
        body = models.PrincipalCreate(name=name, title=title, email=email)
        return self._send(models.PrincipalInfo, "POST", _path(kind), body)

    def principals(self, kind: Kind) -> Listing[models.PrincipalInfo]:
        """Return the registered sites, analysts or operators."""
        return Listing(self._pages(models.PrincipalInfo, _path(kind)))

    def principal(self, kind: Kind, name: str) -> models.PrincipalInfo:
        """Return a site, an analyst or an operator."""
        return self._get(models.PrincipalInfo, _path(kind, name))

    def change(
        self,
        kind: Kind,
        name: str,
        *,
        title: str | None = None,
        email: str | None = None,
        disabled: bool | None = None,
    ) -> models.PrincipalInfo:
        """Change a site, an analyst or an operator.

        Parameters
        ----------
        title : str, optional
        email : str, optional
            The new address for notifications; "" removes it.
        disabled : bool, optional
            Whether its tokens are refused.
        """
        body = models.PrincipalPatch(title=title, email=email, disabled=disabled)
        return self._send(models.PrincipalInfo, "PATCH", _path(kind, name), body)

    def issue_token(self, kind: Kind, name: str, expires_in_days: int = 365) -> models.TokenIssued:
        """Issue a token; its secret is shown only once. The request is never repeated.

        Parameters
        ----------
        expires_in_days : int
        """
        body = models.TokenCreate(expires_in_days=expires_in_days)
        path = _path(kind, name, "tokens")
        return self._send(models.TokenIssued, "POST", path, body, repeatable=False)

    def revoke_token(self, kind: Kind, name: str, token_id: str) -> None:
        """Revoke a token.

        Parameters
        ----------
        token_id : str
            As :meth:`principals` lists it.
        """
        self._http.request("DELETE", _path(kind, name, "tokens", token_id))

    def site_tables(self, name: str) -> Listing[models.SiteTableInfo]:
        """Return what the coordinator accepted last of each protected table of a site."""
        return Listing(self._pages(models.SiteTableInfo, _path("sites", name, "tables")))

    def accept_table(
        self, name: str, table_id: str, number: int, head: str
    ) -> models.SiteTableInfo:
        """Accept a chain of a site's protected table, which its restored store ends with.

        Parameters
        ----------
        table_id : str
        number : int
            Of the chain's last change.
        head : str
            Of that change, 16 hexadecimal digits.
        """
        body = models.TableAcceptance(number=number, head=head)
        path = _path("sites", name, "tables", table_id)
        return self._send(models.SiteTableInfo, "PUT", path, body)

    # --- studies and sessions ---------------------------------------------------------------------

    def create_study(self, study: StudyCreate | Mapping[str, Any]) -> StudyInfo:
        """Create a study, or return the one that the same request created.

        Parameters
        ----------
        study : StudyCreate or mapping

        Raises
        ------
        UsageError
            The mapping cannot be sent; it names each field.

        Examples
        --------
        With an analyst's token; a session takes over what it does not say itself:

        >>> with Client(url, token) as client:
        ...     study = client.create_study(
        ...         {
        ...             "name": "hearts",
        ...             "purpose": "Phenotypes of heart failure at our hospitals.",
        ...             "sites": ["berlin", "oslo", "porto"],
        ...             "features": client.session("heart-2026").definition.features,
        ...         }
        ...     )
        ...     asked = {"algorithm": "lloyd", "config": {"n_clusters": 3}}
        ...     session = client.create_session({"name": "hearts-3", "study": "hearts", **asked})
        >>> session.definition.purpose
        'Phenotypes of heart failure at our hospitals.'
        """
        from fedclust.client.session_request import read_study  # a site creates nothing

        body = study if isinstance(study, StudyCreate) else read_study(study)
        return self._send(StudyInfo, "POST", _path("studies"), body)

    def studies(self) -> Listing[StudyInfo]:
        """Return the studies that the token may see."""
        return Listing(self._pages(StudyInfo, _path("studies")))

    def study(self, name: str) -> StudyInfo:
        """Return a study, as far as the token may see it."""
        return self._get(StudyInfo, _path("studies", name))

    def delete_study(self, name: str) -> None:
        """Delete a study that has no session."""
        self._http.request("DELETE", _path("studies", name))

    def create_session(
        self,
        definition: models.SessionCreate | Mapping[str, Any],
        *,
        from_session: str | None = None,
    ) -> models.SessionInfo:
        """Create a session, or return the one that the same request created.

        Parameters
        ----------
        definition : SessionCreate or mapping
            With ``study`` it may leave out what the study gives. A mapping's features may be names:
            those of the study, or numbers without bounds.
        from_session : str, optional
            Start from the definition of this session, with a new seed: a mapping then holds what
            differs, in ``config`` and ``policy`` option by option. With another algorithm only the
            number of clusters is taken over of ``config``; a warning names the other options.

        Raises
        ------
        UsageError
            The mapping cannot be sent; it names each field.
        Invalid
            The coordinator refuses the definition; ``errors`` names each field.
        """
        from fedclust.client.session_request import read_session  # a site creates nothing

        known = None if from_session is None else self.session(from_session).definition
        body = read_session(definition, known, self.study)
        return self._send(models.SessionInfo, "POST", _path("sessions"), body)

    def sessions(
        self, state: SessionState | None = None, study: str | None = None
    ) -> Listing[models.SessionEntry]:
        """Return the sessions that the token may see.

        Parameters
        ----------
        state : str, optional
            Only those in this state.
        study : str, optional
            Only those of this study.

        Raises
        ------
        NotFound
            The token may not see the study.
        """
        asked = {"state": state, "study": study}
        sessions = Listing(self._pages(models.SessionEntry, _path("sessions"), **asked))
        if study is not None and not sessions:
            self.study(study)
        return sessions

    def session(self, name: str) -> models.SessionInfo:
        """Return a session with its frozen definition."""
        return self._get(models.SessionInfo, _path("sessions", name))

    def patch_session(self, name: str, patch: models.SessionPatch) -> models.SessionInfo:
        """Move the open round's deadline, invite more sites, or name the clusters.

        Parameters
        ----------
        patch : SessionPatch
        """
        return self._send(models.SessionInfo, "PATCH", _path("sessions", name), patch)

    def name_clusters(self, session: str, names: Sequence[str]) -> models.SessionInfo:
        """Name the clusters of a completed session's result, for all its readers.

        Parameters
        ----------
        session : str
        names : sequence of str
            One for each cluster, in their order. Of several K those with so many clusters get them.
            An empty one removes the name of its cluster.
        """
        return self.patch_session(session, models.SessionPatch(cluster_names=tuple(names)))

    def start_session(self, name: str) -> models.SessionInfo:
        """Start a session once its quorum has joined."""
        return self._send(models.SessionInfo, "POST", _path("sessions", name, "start"))

    def retry_session(self, name: str) -> models.SessionInfo:
        """Have a held session try again; for operators."""
        return self._send(models.SessionInfo, "POST", _path("sessions", name, "retry"))

    def cancel_session(self, name: str) -> models.SessionEntry:
        """Cancel a session."""
        return self._send(models.SessionEntry, "POST", _path("sessions", name, "cancel"))

    def delete_session(self, name: str) -> None:
        """Delete a session that no site ever joined; its name can be used again."""
        self._http.request("DELETE", _path("sessions", name))

    def exclude(self, session: str, site: str) -> None:
        """Exclude a site from a session; what it answered still counts."""
        self._http.request("DELETE", _path("sessions", session, "participation", site))

    def rounds(self, session: str) -> Listing[models.RoundInfo]:
        """Return a session's rounds: states and who answered, no payloads."""
        return Listing(self._pages(models.RoundInfo, _path("sessions", session, "rounds")))

    def round(self, session: str, number: int) -> models.RoundInfo:
        """Return one round."""
        return self._get(models.RoundInfo, _path("sessions", session, "rounds", str(number)))

    def close_round(self, session: str, number: int) -> models.RoundInfo:
        """End the collecting of a round now; its quorum must have answered."""
        path = _path("sessions", session, "rounds", str(number), "close")
        return self._send(models.RoundInfo, "POST", path)

    def result(self, session: str) -> SessionResult:
        """Return a completed session's result: tables, figures, reports. Two requests.

        Raises
        ------
        ResultNotReady
            The session has not completed.
        """
        return read_result(self.result_document(session), self.session(session).definition)

    def result_document(self, session: str) -> models.ResultDocument:
        """Return a completed session's result as it travels, limited to what the token may see."""
        path = _path("sessions", session, "result")
        return _read_reply(models.ResultDocument, self._http.request("GET", path, accept=BINARY))

    # --- a site's part ----------------------------------------------------------------------------

    def join(self, session: str, participation: models.Participation) -> models.ParticipationInfo:
        """Join a session with consent to its definition.

        Parameters
        ----------
        participation : Participation
        """
        path = _path("sessions", session, "participation")
        return self._send(models.ParticipationInfo, "PUT", path, participation)

    def leave(self, session: str) -> None:
        """Leave a session; what was sent still counts."""
        self._http.request("DELETE", _path("sessions", session, "participation"))

    def task(
        self, session: str, etag: str | None = None, wait_s: int = 25
    ) -> tuple[models.TaskResponse | None, str | None]:
        """Return the site's present task and its ETag.

        Parameters
        ----------
        etag : str, optional
            That of the last task: the coordinator waits up to ``wait_s`` seconds for another one.
        wait_s : int

        Returns
        -------
        TaskResponse or None
            None if no other task came.
        str or None
        """
        reply = self._http.request(
            "GET",
            _path("sessions", session, "task"),
            params={"wait": wait_s} if etag else None,
            headers={"If-None-Match": etag} if etag else None,
            accept=BINARY,
            wait_s=wait_s,
        )
        self.audit_head = read_audit_head(reply.headers) or self.audit_head
        if reply.status == 304:
            return None, etag
        tag = reply.headers.get("ETag")
        if not tag:
            # Without an ETag each request is answered at once, so this would become a busy loop.
            raise ProtocolError("the task came without its ETag: a proxy in between may remove it")
        return _read_reply(models.TaskResponse, reply), tag

    def submit(
        self, session: str, round_number: int, body: bytes, media: str = BINARY, wait_s: int = 0
    ) -> tuple[models.Receipt, models.TaskResponse | None, str | None]:
        """Send a submission's exact bytes.

        Parameters
        ----------
        round_number : int
        body : bytes
        media : str
        wait_s : int
            How many seconds the coordinator may keep the receipt back, to send the next task too.

        Returns
        -------
        Receipt
        TaskResponse or None
            The next task, if it came within ``wait_s``.
        str or None
            Its ETag, or the one with which to wait for it.
        """
        path = _path("sessions", session, "rounds", str(round_number), "submission")
        reply = self._http.request(
            "PUT",
            path,
            params={"wait": wait_s} if wait_s else None,
            body=body,
            media=media,
            accept=BINARY,
            wait_s=wait_s,
        )
        self.audit_head = read_audit_head(reply.headers) or self.audit_head
        found = _read_reply(models.SubmissionReceipt, reply)
        receipt = models.Receipt.model_validate(found.model_dump(exclude={"next"}))
        return receipt, found.next, reply.headers.get("Fedclust-Task-ETag")

    def refuse(self, session: str, number: int, rule: TaskRule) -> models.ParticipationInfo:
        """Refuse the task of a round, and leave the session with it."""
        path = _path("sessions", session, "rounds", str(number), "refusal")
        return self._send(models.ParticipationInfo, "PUT", path, models.TaskRefusal(rule=rule))

    def audit_head_at(self, number: int) -> models.AuditHead:
        """Return the present hash of the entry ``number`` of the coordinator's audit trail."""
        return self._get(models.AuditHead, _path("audit", "heads", str(number)))

    # --- below ------------------------------------------------------------------------------------

    def admin(self, model: type[M], what: str, **query: str | None) -> Iterator[M]:
        """Yield the items of a list for operators.

        Parameters
        ----------
        model : type
        what : str
            ``audit``: the end of the path.
        query
        """
        return self._pages(model, _path("admin", what), **query)

    def _get(self, model: type[M], path: str) -> M:
        return _read_reply(model, self._http.request("GET", path))

    def _send(
        self,
        model: type[M],
        method: str,
        path: str,
        body: Model | None = None,
        *,
        repeatable: bool = True,
    ) -> M:
        # Only fields that were set: the coordinator fills in the defaults of the others.
        data = None if body is None else body.model_dump_json(exclude_unset=True).encode()
        reply = self._http.request(method, path, body=data, repeatable=repeatable)
        return _read_reply(model, reply)

    def _pages(self, model: type[M], path: str, **query: str | None) -> Iterator[M]:
        page_of: Any = models.Page.__class_getitem__(model)
        # The most that the coordinator puts on a page.
        params: dict[str, str | int] = {"limit": 200}
        params |= {k: v for k, v in query.items() if v is not None}
        while True:
            page = _read_reply(page_of, self._http.request("GET", path, params=params))
            yield from page.items
            if page.next is None:
                return
            params["cursor"] = page.next


def _path(*parts: str) -> str:
    return "/".join(["/v1", *(quote(part, safe="") for part in parts)])


def _read_reply(model: type[M], reply: Reply) -> M:
    media = reply.headers.get("Content-Type", "").split(";")[0].strip()
    try:
        return models.read_reply(model, reply.body, media)
    except (ValidationError, codec.CodecError):
        # Not chained: pydantic repeats the input.
        raise ProtocolError(
            f"the answer is not a {model.__name__} of protocol {models.PROTOCOL_VERSION}: a later "
            "coordinator (pip install --upgrade fedclust), or something else answers there"
        ) from None


def require_protocol(who: models.WhoAmI) -> None:
    """Raise ProtocolError unless the coordinator speaks this version of the protocol."""
    if who.protocol_version != models.PROTOCOL_VERSION:
        raise ProtocolError(
            f"the coordinator speaks protocol {who.protocol_version}, this SDK "
            f"{models.PROTOCOL_VERSION}: pip install --upgrade fedclust"
        )


def read_audit_head(headers: Mapping[str, str]) -> str | None:
    """Return ``NUMBER:HASH`` of the coordinator's audit trail from an answer's headers, or None."""
    head = headers.get("Fedclust-Audit-Head", "")
    return head if re.fullmatch(r"[0-9]{1,15}:[0-9a-f]{64}", head) else None
