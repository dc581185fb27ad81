"""Back up and restore the site's state: everything in one file."""

from pathlib import Path
from typing import Annotated

import typer

from fedclust.cli import options as o
from fedclust.cli.console import conclude
from fedclust.schema.display import counted
from fedclust.site.backup import StateSummary, back_up, restore
from fedclust.site.state import SiteState

app = typer.Typer(rich_markup_mode=None)


@o.command(app, "backup", "fedclust backup --out /backup/fedclust-2026-11-24.sqlite3")
def backup_state(out_path: Annotated[Path, o.opt("--out", "File to write.")]) -> None:
    """Write groups, key, journal, ledger, lists and settings to one file, and verify it.

    Sessions may run meanwhile. Keep the file as private as the rows: it holds the site's key.
    """
    found = back_up(SiteState(), out_path)
    conclude(f"{out_path}: {_said(found)}; verified", found)


@o.command(app, "restore", "fedclust restore --from /backup/fedclust-2026-11-24.sqlite3")
def restore_state(
    source: Annotated[Path, o.opt("--from", "File that fedclust backup has written.")],
) -> None:
    """Restore a backup into a state directory without a state. Its site.toml stays.

    What was stored after the backup is lost. A coordinator that knows more of this site's groups
    refuses the next join, until the newer state is found or its operator accepts the restored one.
    Points for outcomes count as spent until each coordinator has confirmed that no charge is lost.
    """
    state = SiteState()
    found = restore(state, source)
    conclude(f"{state.path}: {_said(found)}; restored", found)


def _said(found: StateSummary) -> str:
    return (
        f"{counted(found.tables, 'table')}, {counted(found.sessions, 'session')}, "
        f"{counted(found.lines, 'line')} in the ledger"
    )
