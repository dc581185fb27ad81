"""The ClientApp: a site answers with the state, the approvals and the ledger that it always uses.

What Flower's SuperNode hands over is a coordinator's task like any other. The site recomputes the
hash of the definition, and answers only if exactly this definition is approved, with the name and
the rows of its last review. An answer is stored with its line in the ledger before the SuperNode
gets it; the same message again gets the same bytes. No configuration of a node, of a run or of a
job says what the site answers with. See docs/details/engines.md.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress
from datetime import UTC, datetime

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedclust.cli.output_files import write_outputs
from fedclust.definition import read_definition
from fedclust.flower.messages import Ask, Reply, pack, unpack
from fedclust.flower.opening import PLACE, ReviewedSession, open_session, reviewed_sessions
from fedclust.site.allowance import charge_key
from fedclust.site.approvals import Approvals
from fedclust.site.charges import Charges
from fedclust.site.cohorts import Overtaken
from fedclust.site.journal import SubmissionOutcome
from fedclust.site.session_run import SessionAnswers
from fedclust.site.state import SiteState
from fedclust.wire import errors
from fedclust.wire.codec import sha256

NOT_APPROVED = "not approved"
_LOG = logging.getLogger("fedclust.flower")

app = ClientApp()


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
        if isinstance(error, errors.TaskRefused):
            reply = Reply(refused=error.rule, final=True)
        else:
            consent = isinstance(error, errors.ConsentError)
            reply = Reply(refused=NOT_APPROVED if consent else "error")
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
    own = reviewed_sessions(state).read().by_definition.get(digest)
    if own is None:
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
    while True:
        opened = open_session(state, own, asked.definition)
        with opened.journal.locked(), suppress(Overtaken):
            _require(opened)
            return _reply(opened, own, asked)


def _require(opened: SessionAnswers) -> None:
    """Raise ApprovalNeeded unless exactly these terms are approved."""
    if opened.approvals.require(opened.request) is None:
        raise errors.ApprovalNeeded(f"session {opened.session} was approved with other terms")


def _reply(opened: SessionAnswers, own: ReviewedSession, asked: Ask) -> Reply:
    if asked.ended:
        if asked.result is not None:
            write_outputs(opened.labelled(asked.result), *own.outputs, own.resolved().id_column)
        return Reply(site=own.site)
    expires = opened.info.definition.expires
    if opened.journal.record is None and expires is not None and opened.now() >= expires:
        return Reply(refused="expired")
    if asked.task is None:
        # Nothing over Flower compares heads, so they stay here.
        bare = opened.participation.model_copy(update={"table_id": None, "heads": None})
        return Reply(site=own.site, participation=bare)
    opened.check()
    # Here, with the first answer, and not when the site declares itself: the session has started.
    opened.enter(None, invited=opened.journal.record is None)
    written = opened.answer_to(asked.round, asked.task, lambda: asked.answered)
    # Again: computing takes time.
    _require(opened)
    opened.settle(written, SubmissionOutcome())
    return Reply(site=own.site, body=written.body)
