"""Who may speak to the coordinator: sites, analysts, operators, their tokens. For operators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedclust.cli import options as o
from fedclust.cli.console import Table, err, print_json, show, write_out
from fedclust.cli.help_text import epilog
from fedclust.cli.output_files import check_outputs, is_token, write
from fedclust.cli.session_file import slug
from fedclust.client import Kind
from fedclust.wire.models import PrincipalInfo, TokenIssued

Name = Annotated[str, typer.Argument(help="A slug: a-z, 0-9 and hyphens.", show_default=False)]
TokenOut = Annotated[
    Path | None,
    typer.Option(
        "--token-out",
        help="Write the token to this file, mode 0600, instead of showing it.",
        show_default=False,
    ),
]
Days = Annotated[int, typer.Option("--days", help="Days until it expires.", min=1, max=3650)]


def _group(kind: Kind, one: str, example: str) -> typer.Typer:
    """Return the commands for sites, for analysts or for operators."""
    app = typer.Typer(
        help=f"Register {kind} and issue their tokens; for operators.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )

    @app.command("add", epilog=epilog(f"fedclust {one} add {example} --token-out {example}.token"))
    @o.connected
    def add(
        connection: o.Connection,
        name: Name,
        title: Annotated[str, typer.Option("--title", help="For people.")] = "",
        days: Days = 365,
        token_out: TokenOut = None,
        as_json: o.AsJson = False,
    ) -> None:
        """Register one and issue its first token."""
        check_outputs(((token_out, is_token),), ())
        with connection.client() as client:
            before = client.add(kind, slug(name), title)
            if before.tokens:
                show(err, f"{name} was registered before, and its other tokens stay valid")
            _give(name, client.issue_token(kind, name, days), token_out, as_json)

    @app.command("list", epilog=epilog(f"fedclust {one} list --json"))
    @o.connected
    def show_all(connection: o.Connection, as_json: o.AsJson = False) -> None:
        """List them: when last seen, and which tokens are valid."""
        with connection.client() as client:
            found = list(client.principals(kind))
        if as_json:
            print_json([each.model_dump(mode="json") for each in found])
            return
        grid = Table("name", "title", "state", "last seen", "tokens")
        for each in found:
            grid.row(each.name, each.title, _state(each), _seen(each), _tokens(each))
        grid.show()
        if not found:
            show(err, f"none yet: fedclust {one} add NAME registers one")

    @app.command("token", epilog=epilog(f"fedclust {one} token {example} --days 30"))
    @o.connected
    def token(
        connection: o.Connection,
        name: Name,
        days: Days = 365,
        token_out: TokenOut = None,
        as_json: o.AsJson = False,
    ) -> None:
        """Issue one more token; the others stay valid until they are revoked."""
        check_outputs(((token_out, is_token),), ())
        with connection.client() as client:
            _give(name, client.issue_token(kind, name, days), token_out, as_json)

    @app.command("revoke", epilog=epilog(f"fedclust {one} revoke {example} TOKEN-ID"))
    @o.connected
    def revoke(
        connection: o.Connection,
        name: Name,
        token_id: Annotated[str, typer.Argument(help="As `list` shows it.", show_default=False)],
        as_json: o.AsJson = False,
    ) -> None:
        """End a token at once."""
        with connection.client() as client:
            client.revoke_token(kind, name, token_id)
        # Nothing is read afterwards: it may have been the token of this command.
        if as_json:
            print_json({"name": name, "id": token_id, "revoked": True})
        else:
            show(err, f"{name}: token {token_id} is revoked")

    @app.command("disable", epilog=epilog(f"fedclust {one} disable {example}"))
    @o.connected
    def disable(connection: o.Connection, name: Name, as_json: o.AsJson = False) -> None:
        """Let none of its tokens work, until `enable`."""
        with connection.client() as client:
            known = client.change(kind, name, disabled=True)
        _done(known, f"{name} is disabled; fedclust {one} enable {name} undoes it", as_json)

    @app.command("enable", epilog=epilog(f"fedclust {one} enable {example}"))
    @o.connected
    def enable(connection: o.Connection, name: Name, as_json: o.AsJson = False) -> None:
        """Let its tokens work again."""
        with connection.client() as client:
            known = client.change(kind, name, disabled=False)
        _done(known, f"{name} is enabled", as_json)

    return app


def _done(known: PrincipalInfo, said: str, as_json: bool) -> None:
    """Say what was done, or print how it stands now."""
    if as_json:
        print_json(known)
    else:
        show(err, said)


def _give(name: str, issued: TokenIssued, path: Path | None, as_json: bool) -> None:
    if path is not None:
        # Files are written 0600.
        write(path, f"{issued.token}\n".encode())
    shown = None if path else issued.token
    if as_json:
        known = {"name": name, "id": issued.id, "expires_at": f"{issued.expires_at:%Y-%m-%d}"}
        print_json({**known, "token": shown, "token_file": str(path) if path else None})
        return
    if shown is not None:
        write_out(f"{shown}\n")
        show(err, "This is the only time that the token is shown.")
    place = f" in {path}" if path else ""
    show(err, f"{name}: token {issued.id}{place}, valid until {issued.expires_at:%Y-%m-%d}")


def _state(one: PrincipalInfo) -> str:
    return "disabled" if one.disabled else "enabled"


def _seen(one: PrincipalInfo) -> str:
    return f"{one.last_seen_at:%Y-%m-%d %H:%M}" if one.last_seen_at else "never"


def _tokens(one: PrincipalInfo) -> str:
    valid = [each for each in one.tokens or () if each.revoked_at is None]
    return ", ".join(f"{each.id} (to {each.expires_at:%Y-%m-%d})" for each in valid)


sites = _group("sites", "site", "cleveland")
analysts = _group("analysts", "analyst", "ada")
operators = _group("operators", "operator", "grace")
