"""Render the tables of transitions as the page ``docs/states.md`` and its figures.

``python docs/states.py`` writes them; tests compare them.
"""

import textwrap
from functools import partial
from pathlib import Path

from diagrams import Edge, save, state_graph
from fedclust.result.drawing import Figure
from fedclust_service.domain.round import ROUND_TRANSITIONS
from fedclust_service.domain.session import PARTICIPATION_TRANSITIONS, SESSION_TRANSITIONS

_HEAD = """\
# States

This page lists the states of a session, of a site and of a round, with the exact rules that lead
from one state to another. Grey states are final. For an introduction read [a
session](concepts/session.md) and [a round](concepts/round.md).

`python docs/states.py` renders this page from the tables in `service/fedclust_service/domain/`. Do
not edit the page: change the tables.
"""

_SESSION = """\
The definition says how a session starts:

- `when_all_joined`: when the last invited site has joined. Sites that have declined or were
  excluded do not count.
- `manual`: when its analyst starts it.

In both cases at least `quorum` sites must have joined, or `min_sites` if there is no quorum. A
session ends once, and its definition never changes.

A running session is **held** when the processes that aggregated its open round have died five
times, for example because memory ran out. Deaths of the coordinator itself do not count. While it
is held, no deadline runs, its sites wait as they do during an aggregation, and all submissions are
kept. An operator has it try again: then it runs. Or it is cancelled. It fails if its stored data
turns out to be damaged, or if an upgraded coordinator no longer supports its method's version.

A session that no site ever joined can be deleted, in any state. Only the audit trail keeps it, and
its name can be used again.
"""

_PARTICIPATION = """\
A site that has left, was excluded or has [refused a task](protocol.md#refusing-a-task) cannot join
again. Its stored submissions still count.
"""

_ROUND = """\
A site is **pending** while it takes part and has not answered the round. A round is **overdue**
while it collects past its deadline, or while fewer than `min_sites` of its sites take part. The
**quorum** is that of the policy. If the policy has none, it is the number of the round's sites that
still take part, and at least `min_sites`.

The coordinator checks the rules below after every submission, every departure of a site and every
change of the deadline, and at regular intervals. The first rule that applies decides:

1. A site of the round leaves without an answer, in a phase whose method then completes with what
   it has found (`dual`): the round is aggregated, `site_left`.
2. A site has refused a task of the session. Fewer than `min_sites` of the round's sites still take
   part, and there cannot be `min_sites` non-empty submissions any more: round and session fail,
   `task_refused`.
3. No site is pending, and there are at least `min_sites` non-empty submissions: the round is
   aggregated, `all_answered`.
4. No site is pending, there are fewer non-empty submissions, and at least `min_sites` of the
   round's sites still take part: round and session fail, `too_few_contributors`.
5. The deadline has passed, and the quorum of non-empty submissions is stored: the round is
   aggregated, `quorum_at_deadline`.
6. The analyst or an operator closes the round before the deadline, and the quorum of non-empty
   submissions is stored: the round is aggregated, `operator`.
7. The round has been overdue for `fail_after_s`: round and session fail, `quorum_not_reached`.

A phase that needs all sites closes only by `all_answered` or `site_left`.

An aggregating round and its session fail if the method fails, or because of `aggregation_error`,
`aggregation_timeout`, `version_unsupported` or `stored_data_damaged`.

**Optional rounds** never fail a session. These are the closing evaluation, and rounds that improve
a clustering (`overlap`). An optional round is aggregated when no site is pending (`all_answered`),
when refused tasks leave too few sites (`task_refused`), or when it has been overdue for
`fail_after_s` (`fail_after`). If it has fewer than `min_sites` non-empty submissions, it is not
used: the session completes with the previous clustering, and a warning says so. Without an
evaluation its quality is null, and so are its sizes unless the method counts them itself.
"""


TABLES = {
    "session": SESSION_TRANSITIONS,
    "participation": PARTICIPATION_TRANSITIONS,
    "round": ROUND_TRANSITIONS,
}
_TITLES = {
    "session": "States of a session",
    "participation": "States of a site in a session",
    "round": "States of a round",
}
#: States that the text describes and the figure leaves out: their arrows back would cross others.
_IN_WORDS = frozenset({"held"})
#: States that stand left or right of the middle.
_COLUMNS = {"cancelled": -1, "failed": 1, "left": -1, "excluded": 1, "refused": 0}


def draw(name: str) -> Figure:
    """Return a table of transitions as a figure."""
    rows = [(row.source.value, row.target.value, row.why) for row in TABLES[name]]
    edges = [Edge(*row) for row in rows if _IN_WORDS.isdisjoint(row)]
    return state_graph(_TITLES[name], edges, _COLUMNS)


FIGURES = {f"states_{name}": partial(draw, name) for name in TABLES}


def _image(name: str) -> str:
    figure = draw(name)
    image = f"![{figure.title}. {figure.description}](figures/states_{name}.svg)"
    return textwrap.fill(image, 100, break_on_hyphens=False) + "\n"


def page() -> str:
    """Return the page."""
    parts = [
        _HEAD,
        "## Session\n",
        _image("session"),
        _SESSION,
        "## A site in a session\n",
        _image("participation"),
        _PARTICIPATION,
        "## Round\n",
        _image("round"),
        _ROUND,
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    save(FIGURES)
    Path(__file__).with_suffix(".md").write_text(page(), "utf-8")
