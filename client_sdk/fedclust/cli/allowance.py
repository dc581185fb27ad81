"""The points for outcomes of this site's persons: show, open more, and what may be a feature."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fedclust.cli import options as o
from fedclust.cli.console import conclude, err, out, print_json, show
from fedclust.result.privacy_loss import DELTA, epsilon, guesses, right_guesses
from fedclust.site.allowance import Charge
from fedclust.site.approvals import checked_name
from fedclust.site.charges import MOST_RAISED, Charges, TablePoints
from fedclust.site.state import SiteState
from fedclust.site.terminal import confirmed
from fedclust.wire.errors import ConsentDeclined

app = o.group("Show and open the points with which outcomes of this site's persons are counted.")
_ApprovedBy = Annotated[str, o.opt("--approved-by", "Who approves this; entered in the ledger.")]


@o.command(app, "show", "fedclust allowance show", "fedclust allowance show --json")
def show_all() -> None:
    """Show each table's points: spent, left, by session, and what they let anybody learn."""
    state = SiteState()
    tables = Charges(state).overview()
    if o.wants_json():
        print_json([_facts(each) for each in tables])
        return
    for each in tables:
        show(out, f"table {each.table}, formed {each.created}", "bold")
        for line in _lines(each):
            show(out, f"  {line}")
    if not tables:
        show(err, f"no table yet in {state.path}; to form one: fedclust cohort create")


@o.command(app, "raise", 'fedclust allowance raise --table 3fa9 50 --approved-by "board 2027-14"')
def raise_limit(
    table: Annotated[str, o.opt("--table", "Start of the table's id.")],
    points: Annotated[int, o.arg("Points to open.", min=1, max=MOST_RAISED)],
    approved_by: _ApprovedBy,
    yes: Annotated[bool, o.opt("--yes", "Open them without asking.")] = False,
) -> None:
    """Open more points for a table, and for each table that shares them. This cannot be undone.

    It prints what all points together will let anybody learn, and asks.
    """
    approved_by, charges = checked_name(approved_by), Charges(SiteState())
    names, known = charges.raised_by(table, points), charges.allowances()
    for name in names:
        before = known[name].limit
        show(
            err,
            f"table {name}: {before + points} points instead of {before}. Whoever knows everything "
            f"else, and asks for all {before + points}, guesses one patient's yes/no outcome right "
            f"{guesses(before + points)} times in 100 instead of {guesses(before)}; epsilon "
            f"{epsilon(before + points):.2f} instead of {epsilon(before):.2f} at delta {DELTA:g}.",
        )
    if not (yes or confirmed(f"Open {points} points?", "--yes")):
        raise ConsentDeclined("no points were opened")
    found = charges.raise_limit(table, points, approved_by, datetime.now(UTC))
    said = "; ".join(
        f"table {name}: {each.left} of {each.limit} points left" for name, each in found.items()
    )
    conclude(said, [_facts(each) for each in charges.overview() if each.table in found])


@o.command(app, "role", 'fedclust allowance role died_30 --approved-by "board 2027-14"')
def release_role(
    column: Annotated[str, o.arg("Name of the column at this site.")],
    approved_by: _ApprovedBy,
) -> None:
    """Let a column that was only ever an outcome be a feature too.

    The groups then release its typical values, without noise and without points.
    """
    names = Charges(SiteState()).release_role(column, checked_name(approved_by), datetime.now(UTC))
    said = f"{column} may be a feature of table {', '.join(names)}: its groups will release it"
    conclude(said, {"column": column, "tables": names})


def _facts(found: TablePoints) -> dict[str, Any]:
    allowance = found.allowance
    return {
        "table": found.table,
        "limit": allowance.limit,
        "spent": allowance.spent,
        "withheld": allowance.withheld,
        "left": found.left,
        "shares_with": list(found.shares_with),
        "spent_before": allowance.carried,
        "lost": allowance.lost,
        "charges": [
            {
                **asdict(charge),
                "points": charge.points,
                "state": _state(charge, answered=key in found.answered),
            }
            for key, charge in allowance.charges.items()
        ],
        "not_confirmed_by": [
            {"coordinator": coordinator, "site": site}
            for coordinator, site in sorted(allowance.doubted)
        ],
        "no_features": list(found.no_features),
        "right_guesses_spent": right_guesses(allowance.spent),
        "right_guesses_limit": right_guesses(allowance.limit),
        "epsilon_spent": epsilon(allowance.spent),
        "epsilon_limit": epsilon(allowance.limit),
        "delta": DELTA,
    }


def _state(charge: Charge, *, answered: bool) -> str:
    words = {"returned": "given back", "ended": "given back", "closed": "spent"}
    return "answered" if answered else words.get(charge.state, "open")


def _lines(found: TablePoints) -> Iterator[str]:
    allowance = found.allowance
    yield f"{allowance.spent} of {allowance.limit} points spent; {found.left} left"
    yield (
        "whoever knows everything else guesses one patient's yes/no outcome right "
        f"{guesses(allowance.spent)} times in 100 with what is spent, {guesses(allowance.limit)} "
        "with all points, 50 without"
    )
    yield (
        f"epsilon {epsilon(allowance.spent):.2f} with what is spent, "
        f"{epsilon(allowance.limit):.2f} with all points, at delta {DELTA:g}"
    )
    if found.shares_with:
        yield f"the same points as table {', '.join(found.shares_with)}"
    if allowance.carried:
        yield f"{allowance.carried} points were spent before this table was formed"
    if allowance.lost:
        yield f"{allowance.lost} points are lost: a coordinator knew changes that are not here"
    if allowance.doubted:
        places = ", ".join(f"{where} (as {site})" for where, site in sorted(allowance.doubted))
        yield (
            f"the state was restored: {allowance.withheld} points count as spent until confirmed "
            f"by {places}; run fedclust status there"
        )
    for key, charge in allowance.charges.items():
        asked = ", ".join(f"{name} {points}" for name, points in charge.outcomes.items())
        state = _state(charge, answered=key in found.answered)
        yield f"{charge.time}  {charge.session} at {charge.coordinator}: {asked} ({state})"
    if found.no_features:
        yield f"may not be features: {', '.join(found.no_features)} (fedclust allowance role)"
