"""Accounts at the coordinator: sites, analysts and operators, and their tokens. For operators."""

from pathlib import Path
from typing import Annotated

import typer

from fedclust.cli import options as o
from fedclust.cli.console import conclude, err, print_json, show, show_list, write_out
from fedclust.cli.output_files import check_outputs
from fedclust.cli.session_file import checked, slug
from fedclust.client import Kind
from fedclust.client.session_request import FieldNames
from fedclust.durable_files import write_file
from fedclust.schema.model import EmailAddress
from fedclust.wire.errors import UsageError
from fedclust.wire.models import PrincipalInfo, TableId, TokenIssued

Name = Annotated[str, o.arg("Name: a-z, 0-9 and hyphens.")]
TokenOut = Annotated[
    Path | None,
    o.opt("--token-out", "Write the token to this file, mode 0600, instead of showing it."),
]
Email = Annotated[
    str | None,
    typer.Option("--email", metavar="ADDRESS", help="Address that notifications are mailed to."),
]
Days = Annotated[int, typer.Option("--days", help="Days until the token expires.", min=1, max=3650)]


_NAMES = FieldNames(
    {
        "/name": "NAME",
        "/title": "--title",
        "/email": "--email",
        "/expires_in_days": "--days",
        "/number": "--number",
        "/head": "--head",
    }
)


# Longer than a screen because it holds seven commands with their options.
def _group(kind: Kind, one: str, example: str) -> typer.Typer:
    """Return the commands for sites, for analysts or for operators."""
    app = o.group(f"Register {kind} and issue their tokens; for operators.")

    @o.command(
        app,
        "add",
        f"fedclust {one} add {example} --token-out {example}.token",
        text=f"Register the {one} NAME and issue a first token.",
    )
    def add(
        connection: o.Connection,
        name: Name,
        title: Annotated[str, typer.Option("--title", help="Title that people read.")] = "",
        email: Email = None,
        days: Days = 365,
        token_out: TokenOut = None,
    ) -> None:
        _check_new(token_out)
        with connection.client() as client, _NAMES.applied():
            before = client.add(kind, slug(name), title, email=email)
            if before.tokens:
                another = f"another token: fedclust {one} token {name}"
                raise UsageError(f"the {one} {name} is registered already; {another}")
            _give(name, client.issue_token(kind, name, days), token_out)

    @o.command(
        app,
        "list",
        f"fedclust {one} list --json",
        text=f"List all {kind}: when they were last seen, and which tokens are valid.",
    )
    def show_all(connection: o.Connection) -> None:
        with connection.client() as client:
            found = list(client.principals(kind))
        show_list(found, f"no {kind} yet; to register one: fedclust {one} add NAME", _account_row)

    @o.command(app, "token", f"fedclust {one} token {example} --days 30")
    def token(
        connection: o.Connection,
        name: Name,
        days: Days = 365,
        token_out: TokenOut = None,
    ) -> None:
        """Issue one more token; the others stay valid until they are revoked."""
        _check_new(token_out)
        with connection.client() as client:
            _give(name, client.issue_token(kind, name, days), token_out)

    @o.command(app, "revoke", f"fedclust {one} revoke {example} TOKEN-ID")
    def revoke(
        connection: o.Connection,
        name: Name,
        token_id: Annotated[str, o.arg("Id of the token, as `list` shows it.")],
    ) -> None:
        """Revoke a token; it stops working at once."""
        with connection.client() as client:
            client.revoke_token(kind, name, token_id)
        # The coordinator is not asked again: the token may have been the one of this command.
        revoked = {"name": name, "id": token_id, "revoked": True}
        conclude(f"{name}: token {token_id} is revoked", revoked)

    @o.command(
        app,
        "email",
        f"fedclust {one} email {example} it@{example}.example",
        text=f"Change where notifications of the {one} NAME are mailed to, or remove the address.",
    )
    def email_address(
        connection: o.Connection,
        name: Name,
        address: Annotated[str | None, o.arg("E-mail address; leave it out with --remove.")] = None,
        remove: Annotated[bool, o.opt("--remove", "Mail no more.")] = False,
    ) -> None:
        if (address is None) is not remove:
            raise UsageError("give either an ADDRESS or --remove")
        refusal = "this is no e-mail address; use one such as it@hospital.example"
        new = "" if address is None else checked(EmailAddress, address, refusal)
        with connection.client() as client:
            known = client.change(kind, name, email=new)
        done = f"are mailed to {new}" if new else "are no longer mailed"
        conclude(f"{name}: notifications {done}", known)

    def switch(name: str, text: str, done: str, *, disabled: bool) -> None:
        @o.command(app, name, f"fedclust {one} {name} {example}", text=text)
        def change(connection: o.Connection, name: Name) -> None:
            with connection.client() as client:
                known = client.change(kind, name, disabled=disabled)
            conclude(f"{name} is {done.format(name)}", known)

    stop, back = f"Make all tokens of the {one} stop working, until `enable`.", f"{one} enable"
    switch("disable", stop, f"disabled; fedclust {back} {{}} undoes it", disabled=True)
    switch("enable", f"Make the tokens of the {one} work again.", "enabled", disabled=False)
    return app


def _account_row(account: PrincipalInfo) -> dict[str, str | None]:
    seen = account.last_seen_at
    valid = [each for each in account.tokens or () if each.revoked_at is None]
    return {
        "name": account.name,
        "title": account.title or None,
        "e-mail": account.email,
        "state": "disabled" if account.disabled else "enabled",
        "last seen": f"{seen:%Y-%m-%d %H:%M}" if seen else "never",
        "tokens": ", ".join(f"{each.id} (to {each.expires_at:%Y-%m-%d})" for each in valid),
    }


def _check_new(path: Path | None) -> None:
    """Refuse a file that exists: it may be the only copy of another token."""
    if path is not None and path.exists():
        raise UsageError(f"--token-out: {path} exists: give another name, or move the file away")
    check_outputs(((path, lambda _: False),), ())


def _give(name: str, issued: TokenIssued, path: Path | None) -> None:
    if path is not None:
        # Files are written 0600.
        write_file(path, f"{issued.token}\n".encode())
    shown = None if path else issued.token
    if o.wants_json():
        known = {"name": name, "id": issued.id, "expires_at": f"{issued.expires_at:%Y-%m-%d}"}
        print_json({**known, "token": shown, "token_file": str(path) if path else None})
        return
    if shown is not None:
        write_out(f"{shown}\n")
        show(err, "The token is shown only this once.")
    place = f" in {path}" if path else ""
    show(err, f"{name}: token {issued.id}{place}, valid until {issued.expires_at:%Y-%m-%d}")


sites = _group("sites", "site", "cleveland")


@o.command(
    sites,
    "tables",
    "fedclust site tables cleveland",
    text="List what was accepted last of each protected table of the site NAME.",
)
def show_tables(connection: o.Connection, name: Name) -> None:
    with connection.client() as client:
        found = list(client.site_tables(name))
    show_list(found, f"{name} has joined no session with a protected table")


@o.command(
    sites,
    "accept-table",
    "fedclust site accept-table cleveland --table 5b0a0ad3f5f0443fbd2f3a4a8f6f7a3e "
    "--number 7 --head 9f86d081884c7d65",
    text="Accept the protected table of a site that lost its newer state; its groups are kept.",
)
def accept_table(
    connection: o.Connection,
    name: Name,
    table: Annotated[str, o.opt("--table", "The table's id, as the site's refusal names it.")],
    number: Annotated[int, o.opt("--number", "Number of the table's last change there.")],
    head: Annotated[str, o.opt("--head", "Head of that change: 16 hexadecimal digits.")],
) -> None:
    refusal = "--table: an id has 32 hexadecimal digits; copy the whole id"
    chosen = checked(TableId, table, refusal)
    with connection.client() as client, _NAMES.applied():
        known = client.accept_table(name, chosen, number, head)
    conclude(f"{name}: table {table} is accepted with {number} changes", known)


analysts = _group("analysts", "analyst", "ada")
operators = _group("operators", "operator", "grace")
