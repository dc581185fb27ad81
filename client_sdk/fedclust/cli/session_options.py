"""The options that define a session, and those of them that define a study."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fedclust.cli import options as o
from fedclust.cli.console import err, show
from fedclust.cli.session_file import read_object, source_name
from fedclust.client import Client
from fedclust.client.session_request import FieldNames, read_session, read_study
from fedclust.definition import check_definition
from fedclust.definition.study import StudyCreate, complete
from fedclust.schema import times
from fedclust.wire.errors import UsageError
from fedclust.wire.models import SessionCreate

#: What `fedclust study show --json` prints in addition to what creates a study.
_OF_STORED_STUDY = frozenset({"sessions", "created_by", "created_at"})
_FIELDS = ("title", "purpose", "contact", "approval", "expires", "features", "sites")


#: As text; :func:`read_clusters` reads it.
Clusters = Annotated[
    str | None, o.opt("--clusters", "Number of clusters K; 2-10 or 2,3,5 compares several.")
]
#: Which of a sweep's results is meant; by default the one that the result shows.
OneK = Annotated[
    int | None,
    o.opt("--k", "For a sweep: use this K instead of the one that is shown first.", min=1),
]
#: The largest K that an option gives.
_MOST_K = 10_000


class _Shared(o.OptionGroup):
    """What sessions and studies have in common."""

    file: Path | None = None
    """JSON file with the definition; - is standard input."""
    algorithm: str | None = None
    """The method."""
    clusters: Clusters = None
    features: str | None = None
    """Names of numeric features, comma-separated; for others use --file."""
    sites: str | None = None
    """Names of the sites, comma-separated."""
    title: str | None = None
    """Title that people read."""
    purpose: str | None = None
    """Why the sites should take part, one to five sentences. Required."""
    contact: str | None = None
    """Who is responsible: name, institution, address."""
    approval: str | None = None
    """Ethics approval or contract."""
    expires: str | None = None
    """Time until which sites can join: RFC 3339 with its offset from UTC."""
    min_sites: Annotated[int | None, {"min": 2}] = None
    """Number of sites that every round needs, 3 by default. With 2, each of two sites can work out
    the other's part and has to consent to that."""
    min_group_size: Annotated[int | None, {"min": 3}] = None
    """Least group size: the smallest number of persons behind any number that a site sends. 5 by
    default; 10 and 11 are other common thresholds."""
    stability: Annotated[int | None, {"min": 0}] = None
    """Number of models of resampled data to compare the clusters with; 100 is usual."""
    evidence: Annotated[bool | None, {"is_flag": True}] = None
    """Compare the clusters with one cloud without clusters. With several K or --stability this
    happens anyway."""
    start: Literal["when_all_joined", "manual"] | None = None
    """When the session starts."""

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of these options that were given, as fields of a definition."""
        said = {name: getattr(self, name) for name in names}
        said = {name: value for name, value in said.items() if value is not None}
        if "expires" in said:
            said["expires"] = read_time(said["expires"], "--expires").isoformat()
        for name in said.keys() & {"features", "sites"}:
            said[name] = o.split_names(said[name])
        return said

    def parts(self, body: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return the method's options and the policy of ``body``, with what was given."""
        config = self.given("stability")
        # A flag that is off changes nothing.
        if self.evidence:
            config["evidence"] = True
        if self.clusters is not None:
            config["n_clusters"] = read_clusters(self.clusters)
        given = {"config": config, "policy": self.given("min_sites", "min_group_size")}
        return {key: {**_object_at(body, key), **part} for key, part in given.items() if part}


class SessionOptions(_Shared):
    """A definition, or changes of one from a file, another session or a study."""

    from_session: Annotated[str | None, {"name": "--from"}] = None
    """Start from the definition of this session, with a new seed."""
    study: Annotated[str | None, {"callback": o.slug_or_none}] = None
    """Study that the session belongs to. It gives what you leave out."""
    seed: Annotated[int | None, {"min": 0}] = None
    """Seed of the session; random by default."""

    @property
    def names(self) -> FieldNames:
        """How the definition's author knows its fields."""
        options = o.option_names(SessionOptions)
        given = [option for name, option in options.items() if getattr(self, name)]
        options |= {"/name": "SESSION", "n_clusters": "--clusters"}
        sources = [] if self.file is None else [source_name(self.file)]
        if self.from_session is not None:
            sources.append(f"session {self.from_session}")
        return FieldNames(options, frozenset(["SESSION", *given]), " or ".join(sources))

    def definition(self, session: str, client: Client) -> SessionCreate:
        """Return the definition of a session of this name; UsageError that says what is wrong."""
        body = {} if self.file is None else read_object(self.file)
        body |= {"name": session, **self.given(*_FIELDS, "study", "algorithm", "seed", "start")}
        body |= self.parts(body)
        # Clusters may be left to a method that chooses; the coordinator says where they may not.
        body.setdefault("config", {})
        start = None
        if self.from_session is not None:
            start = client.session(self.from_session).definition
        found = read_session(body, start, client.study, self.names, partial(show, err))
        if found.study is None and not found.purpose:
            name = self.names.name("/purpose")
            raise UsageError(f"{name}: say in one to five sentences what the session is for")
        where = self.names.name("/config/n_clusters")
        refuse_one_cluster(found.config.get("n_clusters"), where)
        return found

    def checked(self, session: str, client: Client) -> SessionCreate:
        """Return the complete definition; DefinitionError if it breaks a rule."""
        found = self.definition(session, client)
        if found.study is not None:
            shared = client.study(found.study).model_dump(exclude_none=True)
            known = {name: shared[name] for name in StudyCreate.model_fields if name in shared}
            found = complete(StudyCreate.model_validate(known), found)
        check_definition(found)
        return found


class WorthOptions(o.OptionGroup):
    """Whether to create the session at all, and guesses that say if outcomes are worth asking."""

    check: bool = False
    """Create nothing: check the definition, and say what its outcomes cost and whether they are
    worth asking."""
    persons: Annotated[int | None, {"min": 1}] = None
    """A guess for --check: the persons of all sites together."""
    shares: str | None = None
    """Guesses for --check: the share of persons with each outcome, such as died=0.1,relapse=0.4.
    They are not part of the definition."""

    def guesses(self) -> dict[str, float]:
        """Return the guessed share of each outcome; UsageError for what is no share."""
        found = {}
        for part in o.split_names(self.shares or ""):
            name, _, text = part.rpartition("=")
            try:
                share = float(text)
            except ValueError:
                share = 0.0
            if not name or not 0 < share < 1:
                raise UsageError(f"--shares: {part}: give NAME=SHARE, such as died=0.1")
            found[name.strip()] = share
        return found


class StudyOptions(_Shared):
    """What the sessions of a study have in common."""

    @property
    def names(self) -> FieldNames:
        """How the study's author knows its fields."""
        if self.file is None:
            own = {"/name": "STUDY", "n_clusters": "--clusters"}
            return FieldNames(o.option_names(StudyOptions) | own)
        return FieldNames({}, source=source_name(self.file))

    def definition(self, name: str) -> StudyCreate:
        """Return the definition of a study of this name; UsageError that says what is wrong."""
        body = {} if self.file is None else read_object(self.file)
        body = {key: value for key, value in body.items() if key not in _OF_STORED_STUDY}
        body |= {"name": name, **self.given(*_FIELDS)}
        defaults = {**_object_at(body, "defaults"), **self.given("algorithm", "start")}
        defaults |= self.parts(defaults)
        if defaults:
            body["defaults"] = defaults
        return read_study(body, self.names)


def read_time(text: str, option: str) -> datetime:
    """Return a time with its offset; UsageError for anything else."""
    if (time := times.read_time(text)) is None:
        raise UsageError(f"{option}: give the time with its offset, for example 2026-12-01T12:00Z")
    return time


def _object_at(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key, {})
    if not isinstance(found, Mapping):
        raise UsageError(f"the definition: {key}: give one JSON object, {{...}}")
    return found


def read_clusters(text: str) -> int | list[int]:
    """Return K, or every K of a range or list; UsageError for anything else."""
    ks: list[int] = []
    ranged = re.fullmatch(r"([0-9]{1,5}) *- *([0-9]{1,5})", text.strip())
    if ranged:
        low, high = int(ranged[1]), int(ranged[2])
        ks = list(range(low, high + 1)) if high <= _MOST_K else []
    elif re.fullmatch(r"[0-9]{1,5}( *, *[0-9]{1,5})*", text.strip()):
        ks = [int(k) for k in text.split(",")]
    if not ks or not all(1 <= k <= _MOST_K for k in ks):
        raise UsageError(
            f"--clusters {text}: give a number from 2 to {_MOST_K}, a range such as 2-10, or a "
            "list such as 2,3,5"
        )
    refuse_one_cluster(ks, f"--clusters {text}")
    return ks if ranged or len(ks) > 1 else ks[0]


def refuse_one_cluster(n_clusters: object, where: str) -> None:
    """Raise UsageError if K, or one of several, is 1."""
    ks = n_clusters if isinstance(n_clusters, list | tuple) else [n_clusters]
    if any(k == 1 and isinstance(k, int) and not isinstance(k, bool) for k in ks):
        raise UsageError(
            f"{where}: one cluster holds all persons, so there is nothing to find: give at least 2"
        )
