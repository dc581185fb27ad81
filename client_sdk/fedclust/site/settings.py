"""The settings of a site: the file ``site.toml`` in its state directory; see docs/cli.md."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedclust.data.mapping import read_toml
from fedclust.definition import LEAST_GROUP
from fedclust.schema.model import Written
from fedclust.wire.errors import DisclosureError, UsageError

_FILE = "site.toml"


class AgentSettings(Written):
    """What applies to the agent of this site."""

    notify_command: tuple[str, ...] = ()
    """The program, and its arguments, that the agent runs when somebody has to act, such as
    `["/usr/local/bin/tell", "it@hospital.example"]`. An empty list: none.
    """


class SiteSettings(Written):
    """What applies to every session of this site and every user of it."""

    require_approval: bool = False
    """Whether this site joins a session, and sends in it, only with a recorded approval of exactly
    what is asked (`fedclust approve`).
    """
    min_group_size: Annotated[int, Field(ge=LEAST_GROUP, le=1_000_000)] | None = None
    """The fewest persons behind any number that this site sends, in every session and whatever
    option is given; at least 3. A session with smaller groups uses this number. A session that was
    joined with smaller groups before, or that asks for exact rows (`protection: none`), sends
    nothing more. None: only the session and the options of a command count.
    """
    ids: Literal["permanent"] | None = None
    """Whether nobody's id ever changes at this site. Then a file may lack known persons and have
    new ones at the same time. None: p or more of both are taken for changed ids.
    """
    agent: AgentSettings = AgentSettings()
    """The table `[agent]`."""

    def lines(self) -> list[str]:
        """Return each setting in use, as the file would say it."""
        tree = self.model_dump(exclude_none=True)
        tree |= {f"agent.{name}": value for name, value in tree.pop("agent").items()}
        return [f"{name} = {json.dumps(value)}" for name, value in tree.items()]

    def refuse_smaller_groups(self, session: str, p: int, *, exact: bool) -> None:
        """Refuse a session in which numbers would rest on fewer persons than this site allows.

        Parameters
        ----------
        session : str
        p : int
            The fewest persons behind any number that would leave.
        exact : bool
            Whether the session asks for exact rows.

        Raises
        ------
        DisclosureError
        """
        least = self.min_group_size
        if least is None or (p >= least and not exact):
            return
        wants = (
            "asks for exact rows (protection: none)"
            if exact
            else f"was joined with groups of at least {p} persons"
        )
        raise DisclosureError(
            "min-group-size",
            f"session {session} {wants}, and {_FILE} allows no number about fewer than "
            f"{least} persons. If this site has joined, leave the session: "
            f"fedclust leave {session}",
        )


def settings_path(directory: Path) -> Path:
    """Return where a site's settings are read from, whether or not the file exists.

    ``directory`` is that of the site's state.
    """
    return directory / _FILE


def read_settings(directory: Path) -> SiteSettings:
    """Return the settings of the site with this state directory; the defaults without a file.

    Raises
    ------
    UsageError
        The file cannot be read, is not TOML, or has an unknown key or a wrong value.
    """
    path = settings_path(directory)
    try:
        return read_toml(path, SiteSettings, AgentSettings.model_fields)
    except (FileNotFoundError, NotADirectoryError):
        return SiteSettings()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as fault:
        raise UsageError(f"{path}: {fault}") from None
