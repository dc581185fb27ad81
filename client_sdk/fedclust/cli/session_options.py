"""The options that define a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from fedclust.cli import options as o
from fedclust.cli.cluster_options import Clusters, read_clusters, refuse_one_cluster
from fedclust.cli.session_file import definition, read_object
from fedclust.client import Client
from fedclust.errors import UsageError
from fedclust.wire.models import SessionCreate

#: Fields of a definition that its author did not write.
_FROZEN = frozenset({"method_version", "seed"})


@dataclass(frozen=True)
class SessionOptions:
    """A definition, or changes of one from a file or another session."""

    file: Annotated[
        Path | None, o.opt("--file", "JSON file with the definition; - is standard input.")
    ] = None
    from_session: Annotated[
        str | None,
        o.opt("--from", "Start from the definition of this session, with a new seed."),
    ] = None
    algorithm: Annotated[str | None, o.opt("--algorithm", "The method.")] = None
    clusters: Clusters = None
    features: Annotated[
        str | None,
        o.opt("--features", "Names of numeric features, comma-separated; for others use --file."),
    ] = None
    sites: Annotated[str | None, o.opt("--sites", "Names of the sites, comma-separated.")] = None
    title: Annotated[str | None, o.opt("--title", "Title of the session.")] = None
    purpose: Annotated[
        str | None,
        o.opt(
            "--purpose",
            "Why the sites should take part, one to five sentences. Every session needs it.",
        ),
    ] = None
    contact: Annotated[str | None, o.opt("--contact", "Whom sites can ask: name, address.")] = None
    approval: Annotated[str | None, o.opt("--approval", "Ethics approval or contract.")] = None
    expires: Annotated[
        str | None,
        o.opt("--expires", "Time until which sites can join: RFC 3339 with its offset from UTC."),
    ] = None
    seed: Annotated[
        int | None, o.opt("--seed", "Seed of the session; random by default.", min=0)
    ] = None
    min_sites: Annotated[
        int | None,
        o.opt(
            "--min-sites",
            "Number of sites that every round needs, 3 by default. With 2, each of two sites can "
            "work out the other's part and has to consent to that.",
            min=2,
        ),
    ] = None
    start: Annotated[
        Literal["when_all_joined", "manual"] | None, o.opt("--start", "When the session starts.")
    ] = None

    def definition(self, session: str, client: Client) -> SessionCreate:
        """Return the definition of a session of this name; UsageError that says what is wrong."""
        body: dict[str, Any] = {}
        if self.from_session is not None:
            known = client.session(self.from_session).definition.model_dump(mode="json")
            body = {key: value for key, value in known.items() if key not in _FROZEN}
        body |= {} if self.file is None else read_object(self.file)
        texts = ("title", "purpose", "contact", "approval", "algorithm", "seed", "start")
        said: dict[str, Any] = {"name": session, **{key: getattr(self, key) for key in texts}}
        if self.expires is not None:
            said["expires"] = read_time(self.expires).isoformat()
        if self.features is not None:
            said["features"] = [{"name": name} for name in o.split_names(self.features)]
        if self.sites is not None:
            said["sites"] = o.split_names(self.sites)
        body |= {key: value for key, value in said.items() if value is not None}
        if self.clusters is not None:
            n_clusters = read_clusters(self.clusters)
            body["config"] = {**_object_at(body, "config"), "n_clusters": n_clusters}
        if self.min_sites is not None:
            body["policy"] = {**_object_at(body, "policy"), "min_sites": self.min_sites}
        needed = ("purpose", "algorithm", "features", "sites")
        if lacking := [key for key in needed if not body.get(key)]:
            options = ", ".join(f"--{key}" for key in lacking)
            raise UsageError(f"the definition lacks {', '.join(lacking)}: give {options}")
        # Clusters may be left to a method that chooses; the coordinator says where they may not.
        body.setdefault("config", {})
        found = definition(body)
        refuse_one_cluster(found.config.get("n_clusters"), "config.n_clusters")
        return found


def read_time(text: str) -> datetime:
    """Return a time with its offset; UsageError for anything else."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise UsageError("give the time with its offset, for example 2026-12-01T12:00Z")


def _object_at(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key, {})
    if not isinstance(found, Mapping):
        raise UsageError(f"the definition: /{key}: give one JSON object, {{...}}")
    return found
