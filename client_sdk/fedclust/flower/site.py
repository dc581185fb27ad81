"""The ClientApp: a site answers with the state, the approvals and the ledger that it always uses.

What Flower's SuperNode hands over is a coordinator's task like any other. The site recomputes the
hash of the definition, and answers only if exactly this definition is approved. An answer is stored
with its line in the ledger before the SuperNode gets it; the same message again gets the same
bytes.

The node's configuration names the site and its rows: ``--node-config 'site="berlin"
data="@heart"'``. See docs/details/engines.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedclust import errors
from fedclust.cli.output_files import write_labels
from fedclust.definition import read_definition
from fedclust.flower.messages import Ask, Reply, pack, unpack
from fedclust.flower.opening import PLACE, open_session, source_of
from fedclust.site.allowance import charge_key
from fedclust.site.approvals import Approvals
from fedclust.site.charges import Charges
from fedclust.site.cohorts import Overtaken
from fedclust.site.journal import SubmissionOutcome
from fedclust.site.prepare import SiteRows, TableOptions
from fedclust.site.session_run import SessionAnswers
from fedclust.site.state import SiteState
from fedclust.wire.codec import sha256
from fedclust.wire.models import ResultDocument

NOT_APPROVED = "not approved"
_LOG = logging.getLogger("fedclust.flower")

app = ClientApp()


def handle(message: Message, context: Context) -> Message:
    """Answer a message; whatever goes wrong, its text stays in this site's log."""
    try:
        reply = answer(unpack(Ask, message), context.node_config)
    except errors.TaskRefused as refused:
        _LOG.warning("%s", refused)
        reply = Reply(refused=refused.rule, final=True)
    except errors.FedclustError as error:
        _LOG.warning("%s", error)
        consent = isinstance(error, errors.ConsentError)
        reply = Reply(refused=NOT_APPROVED if consent else type(error).__name__)
    except Exception as error:
        # Flower would send the text of the exception, which may hold values of rows.
        _LOG.error("unexpected %s", type(error).__name__)
        reply = Reply(refused="error")
    return Message(pack(reply), reply_to=message)


app.query()(handle)


def answer(asked: Ask, config: Mapping[str, Any]) -> Reply:
    """Return a site's reply.

    Parameters
    ----------
    asked : Ask
    config : mapping
        The node's: ``site`` and ``data``; ``state-dir``, if it is not FEDCLUST_STATE_DIR;
        ``results``, a folder for result and labels; and the options of
        :class:`fedclust.site.prepare.TableOptions`, with hyphens.

    Raises
    ------
    ApprovalNeeded
        Exactly this definition, with these rows, is not approved.
    FedclustError
    """
    state = SiteState(config.get("state-dir"))
    site = str(config.get("site", ""))
    session, digest = read_definition(asked.definition).name, sha256(asked.definition)
    if asked.ended:
        # Also where the approval was withdrawn.
        key = charge_key(PLACE, site, session, digest)
        Charges(state).give_back(key, datetime.now(UTC), ended=True)
    held = Approvals(state).held(PLACE, site, session)
    if held is None or held.definition_sha256 != digest:
        # Before any row is read.
        raise errors.ApprovalNeeded(f"session {session} is not approved for {site or 'no site'}")
    source = source_of(state, str(config.get("data", "")))
    given: Any = {name: config.get(name.replace("_", "-")) for name in TableOptions.__annotations__}
    rows = SiteRows(source.rows(), **source.row_options, **{k: v for k, v in given.items() if v})
    while True:
        own = open_session(state, site, asked.definition, rows)
        with own.journal.locked(), suppress(Overtaken):
            _require(own)
            return _reply(own, asked, config.get("results"))


def _require(own: SessionAnswers) -> None:
    """Raise ApprovalNeeded unless exactly these terms are approved."""
    if own.approvals.require(own.request) is None:
        raise errors.ApprovalNeeded(f"session {own.session} was approved with other terms")


def _reply(own: SessionAnswers, asked: Ask, folder: str | None) -> Reply:
    if asked.ended:
        if asked.result is not None and folder is not None:
            _save(own, asked.result, Path(folder))
        return Reply(site=own.request.site)
    if asked.task is None:
        # Nothing over Flower compares heads, so they stay here.
        bare = own.participation.model_copy(update={"table_id": None, "heads": None})
        return Reply(site=own.request.site, participation=bare)
    own.check()
    # Here, with the first answer, and not when the site declares itself: the session has started.
    own.enter(None, invited=own.journal.record is None)
    written = own.answer_to(asked.round, asked.task, lambda: asked.answered)
    # Again: computing takes time.
    _require(own)
    own.settle(written, SubmissionOutcome())
    return Reply(site=own.request.site, body=written.body)


def _save(own: SessionAnswers, document: ResultDocument, folder: Path) -> None:
    """Write the result, and the labels of this site's rows."""
    result = own.labelled(document)
    folder.mkdir(parents=True, exist_ok=True)
    result.save(folder / f"{own.session}.fedclust")
    write_labels(folder / f"{own.session}.csv", result.labels_, result.ids_, None)
