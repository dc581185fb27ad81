"""Renders the tables of transitions as the page ``docs/states.md``.

``python -m fedclust_service.domain.diagram > docs/states.md`` writes it anew; a test compares.
"""

from __future__ import annotations

import sys
from enum import StrEnum

from fedclust_service.domain.round import ROUND_TRANSITIONS, RoundState
from fedclust_service.domain.session import (
    PARTICIPATION_TRANSITIONS,
    SESSION_TRANSITIONS,
    ParticipationState,
    SessionState,
)
from fedclust_service.domain.transition import Transition

_HEAD = """\
# States

Rendered from the tables in `service/fedclust_service/domain/` by
`python -m fedclust_service.domain.diagram`. Do not edit: change the tables.
"""

_SESSION = """\
A session starts when the last of its sites has joined (`when_all_joined`; sites that declined or
were excluded are not waited for) or when its analyst says so (`manual`), with at least `quorum`
sites, without a quorum `min_sites`. It ends once, and its definition never changes.
"""

_PARTICIPATION = """\
A site that has left or was excluded does not come back. What it has sent still counts.
"""

_ROUND = """\
A collecting round goes on by the first of these that holds. They are looked at after every answer,
departure and moved deadline, and by the clock.

- A site that it addresses leaves without having answered, in a phase whose method then completes
  with what it has found (`dual`): aggregating, `site_left`.
- Nobody is waited for, and at least `min_sites` answers have contents: aggregating,
  `all_answered`.
- Nobody is waited for, fewer answers have contents, and `min_sites` of its sites still take part:
  round and session fail, `too_few_contributors`.
- The quorum of answers with contents is stored, and the deadline has passed: aggregating,
  `quorum_at_deadline`.
- The same before the deadline, and its analyst or an operator closes the round: aggregating,
  `operator`.
- It has been overdue for `fail_after_s`: round and session fail, `quorum_not_reached`.

An aggregating round fails, and its session with it, when the method says so or for
`aggregation_error`, `aggregation_timeout`, `aggregation_abandoned`, `method_version_unsupported`
or `stored_data_damaged`.

Some rounds are optional: the closing evaluation, and rounds that improve a clustering (`overlap`).
They fail no session. Once nobody is waited for such a round is aggregated, `all_answered`; once it
has been overdue for `fail_after_s`, too, `fail_after`. Fewer than `min_sites` answers with contents
are not used, and a warning says so: the session completes with the clustering from before; without
an evaluation its sizes and quality are null.

Without a number in the policy, the quorum is those of the round's sites that still take part, and
never less than `min_sites`. A round is **overdue** while it collects past its deadline, or while
fewer than `min_sites` of its sites take part. A phase that needs all sites is closed by
`all_answered` alone, or by `site_left`.
"""


def diagram(table: tuple[Transition, ...], states: type[StrEnum]) -> str:
    """Return a table of transitions as a Mermaid state diagram."""
    first = next(iter(states))
    left = {row.source for row in table}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {row.source.value} --> {row.target.value}: {row.why}" for row in table]
    lines += [f"    {state.value} --> [*]" for state in states if state not in left]
    return "\n".join([*lines, "```", ""])


def page() -> str:
    """Return the whole page."""
    parts = [
        _HEAD,
        "## Session\n",
        diagram(SESSION_TRANSITIONS, SessionState),
        _SESSION,
        "## A site in a session\n",
        diagram(PARTICIPATION_TRANSITIONS, ParticipationState),
        _PARTICIPATION,
        "## Round\n",
        diagram(ROUND_TRANSITIONS, RoundState),
        _ROUND,
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
