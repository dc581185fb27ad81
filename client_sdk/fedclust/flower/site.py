"""The ClientApp: a site answers with the state, the approvals and the ledger that it always uses.

What Flower's SuperNode hands over is a coordinator's task like any other. The site recomputes the
hash of the definition, and answers only if exactly this definition is approved, with the name and
the rows of its last review. An answer is stored with its line in the ledger before the SuperNode
gets it; the same message again gets the same bytes. No configuration of a node, of a run or of a
job says what the site answers with. See docs/details/engines.md.
"""

import logging
import warnings
from contextlib import suppress
from datetime import UTC, datetime

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedclust.cli.output_files import write_outputs
from fedclust.definition import read_definition
from fedclust.flower.messages import Ask, Declaration, Reply, pack, unpack
from fedclust.site.allowance import charge_key
from fedclust.site.approvals import Approvals
from fedclust.site.charges import Charges
from fedclust.site.cohorts import Overtaken
from fedclust.site.data_sources import SessionSource
from fedclust.site.journal import Journal, SubmissionOutcome
from fedclust.site.ledger import Ledger
from fedclust.site.prepare import SiteRows, table_options
from fedclust.site.session_run import SessionAnswers, info_of
from fedclust.site.state import SiteState, StateDocument
from fedclust.wire import errors
from fedclust.wire.codec import sha256

#: What a site's state calls the coordinator of a session over Flower: it has no address.
PLACE = "flower"
_LOG = logging.getLogger("fedclust.flower")

app = ClientApp()


class ReviewedSession(SessionSource):
    """With which name and rows a site answers a session: those of its last review, or none."""

    data: str = ""
    site: str = ""


def reviewed_session(state: SiteState, digest: str) -> StateDocument[ReviewedSession]:
    """Return what a site has reviewed of the definition with this SHA-256."""
    return StateDocument(state, f"flower {digest}", ReviewedSession)


def open_session(state: SiteState, own: ReviewedSession, definition: bytes) -> SessionAnswers:
    """Prepare a site's rows for a definition; nothing is stored or answered yet."""
    info, source = info_of(read_definition(definition), PLACE), own.resolved()
    rows = SiteRows(source.rows(), **source.row_options, **table_options(own))
    return SessionAnswers(state, (PLACE, own.site), info.name, info, rows)


def handle(message: Message, _: Context) -> Message:
    """Answer a message, whatever goes wrong."""
    try:
        with warnings.catch_warnings():
            # As the texts of errors below: the review has shown them.
            warnings.simplefilter("ignore")
            reply = answer(unpack(Ask, message))
    except Exception as error:
        # The text may hold values of rows. Flower would send it, and NVFlare sends a site's log.
        _LOG.warning("%s", type(error).__name__)
        reply = Reply(refused="not approved" if isinstance(error, errors.ConsentError) else "error")
        if isinstance(error, errors.TaskRefused):
            reply = Reply(refused=error.rule, final=True)
    return Message(pack(reply), reply_to=message)


app.query()(handle)


def answer(asked: Ask) -> Reply:
    """Return a site's reply, with the state of FEDCLUST_STATE_DIR.

    Parameters
    ----------
    asked : Ask

    Raises
    ------
    ApprovalNeeded
        Exactly this definition, with the rows of its last review, is not approved.
    FedclustError
    """
    state, digest = SiteState(), sha256(asked.definition)
    own = reviewed_session(state, digest).read()
    if not own.site:
        raise errors.ApprovalNeeded("this definition was not reviewed")
    session = read_definition(asked.definition).name
    if asked.ended:
        # Also where the approval was withdrawn.
        key = charge_key(PLACE, own.site, session, digest)
        Charges(state).give_back(key, datetime.now(UTC), ended=True)
    held = Approvals(state).held(PLACE, own.site, session)
    if held is None or held.definition_sha256 != digest:
        # Before any row is read.
        raise errors.ApprovalNeeded(f"session {session} is not approved for {own.site}")
    journal = Journal(state, PLACE, own.site, session, digest)
    known = journal.answers.get(asked.round) if asked.round in journal.outcomes else None
    if known and asked.task and asked.task.digest == known.task_digest:
        # Asked again: what has left with its line in the ledger needs no rows.
        Ledger(state).check()
        return Reply(site=own.site, body=known.body)
    while True:
        opened = open_session(state, own, asked.definition)
        with opened.journal.locked(), suppress(Overtaken):
            opened.approvals.require(opened.request, always=True)
            return _reply(opened, own, asked)


def _reply(opened: SessionAnswers, own: ReviewedSession, asked: Ask) -> Reply:
    if asked.ended:
        if asked.result is not None:
            write_outputs(opened.labelled(asked.result), *own.outputs, own.resolved().id_column)
        return Reply(site=own.site)
    expires = opened.info.definition.expires
    if opened.journal.record is None and expires is not None and opened.now() >= expires:
        return Reply(refused="expired")
    if asked.task is None:
        # Nothing over Flower compares the table's heads, so they stay here.
        declared = opened.participation.model_dump(include=set(Declaration.model_fields))
        return Reply(site=own.site, declared=Declaration(**declared))
    opened.check()
    # Here, with the first answer, and not when the site declares itself: the session has started.
    opened.enter(None, invited=opened.journal.record is None)
    written = opened.answer_to(asked.round, asked.task, lambda: asked.answered)
    # Again: computing takes time.
    opened.approvals.require(opened.request, always=True)
    opened.settle(written, SubmissionOutcome())
    return Reply(site=own.site, body=written.body)
