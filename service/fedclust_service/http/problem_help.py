"""When each problem type occurs and what to do about it; rendered as docs/reference/problems.md."""

from __future__ import annotations

from typing import NamedTuple


class ProblemHelp(NamedTuple):
    """When a problem occurs, and what to do then; ``detail`` of a document is more specific."""

    when: str
    action: str


#: A text for each type of :data:`fedclust.wire.problems.CATALOGUE`.
PROBLEM_HELP: dict[str, ProblemHelp] = {
    "malformed-request": ProblemHelp(
        "The request is not HTTP/1.1, its body is not JSON, or the form of a page cannot be read.",
        "Check the address, the port, and that the body is complete. In a browser, load the page "
        "again.",
    ),
    "unauthenticated": ProblemHelp(
        "The request has no token, or one that is unknown, expired, revoked, or of a disabled "
        "account. In a browser: the sign-in has ended.",
        "Send one header `Authorization: Bearer TOKEN`. If your token has ended, ask the "
        "coordinator's operator for another one. In a browser, sign in again.",
    ),
    "forbidden": ProblemHelp(
        "The token is valid, but its role may not do this, or the site was excluded from the "
        "session. In a browser: another page or an earlier sign-in sent the form.",
        "Use a token of a role that `detail` names. In a browser, open the page again.",
    ),
    "not-addressed": ProblemHelp(
        "A site sends a submission for a round that asks other sites only.",
        "Wait for the next task of this site.",
    ),
    "not-found": ProblemHelp(
        "Nothing has this name, or the token may not see it. The coordinator does not say which.",
        "Check the name, the address and the token. A site sees only sessions that invite it, an "
        "analyst only those that the analyst created.",
    ),
    "method-not-allowed": ProblemHelp(
        "The path exists, but not with this HTTP method.",
        "Use a method that the header `Allow` names. In a browser, start from the page that leads "
        "to this address.",
    ),
    "not-acceptable": ProblemHelp(
        "The header `Accept` names no form in which the coordinator can answer.",
        "Accept one of the forms that `detail` names.",
    ),
    "request-timeout": ProblemHelp(
        "The body took longer to arrive than the setting `FEDCLUST_BODY_TIMEOUT_S` allows.",
        "Send the same request again. If the network is slow, an operator can raise the setting.",
    ),
    "name-taken": ProblemHelp(
        "A session, a study or an account of this name exists, with other contents or created by "
        "somebody else.",
        "Choose another name. An account can be changed instead. Whoever created a session that "
        "no site has joined, or a study without sessions, can delete it and use the name again.",
    ),
    "wrong-state": ProblemHelp(
        "The session, the round or the site's participation is in a state that does not allow "
        "this: for example, the session has ended, or the site has left it.",
        "Read the session again. `detail` says what is possible instead.",
    ),
    "consent-mismatch": ProblemHelp(
        "A site joins with the hash of another definition than the session's.",
        "Read the session again, and decide on the definition that it has now.",
    ),
    "consent-needed": ProblemHelp(
        "A site joins without a consent that has to be given expressly: to exact rows "
        "(`protection: none`), or to a session of two sites.",
        "If the site agrees, give the consents that `errors` names.",
    ),
    "session-expired": ProblemHelp(
        "A site joins after the time `expires` of the definition.",
        "Ask the analyst for a new session.",
    ),
    "table-changed": ProblemHelp(
        "A site joins with another protected table than the ones with which it took part before, "
        "or with a state that is older than what the coordinator has accepted of the table, or "
        "branched from it: it was restored from a backup, or copied. A second grouping of the same "
        "persons would reveal more about each of them.",
        "Find the site's newer state, on another machine, in another state directory or in a newer "
        "backup, and join with it. If there is none, ask the operator to accept the chain that "
        "`detail` names (`fedclust site accept-table`); the groups of the restored state are kept. "
        "For other persons, join with `--other-persons`; if the site accepts a second grouping, "
        "with `--separate-groups`. A session that the site has joined keeps its table.",
    ),
    "table-heads-needed": ProblemHelp(
        "A site joins with the last heads of its protected table, and the last change that the "
        "coordinator has accepted came before them.",
        "Send the heads of all changes. The SDK does so by itself.",
    ),
    "version-unsupported": ProblemHelp(
        "The site's SDK does not support the session's version of its method or of the rounds that "
        "all methods share, or an earlier version of fedclust wrote the definition.",
        "Install the version that `detail` names. If it names none, create the session again.",
    ),
    "late-joining-refused": ProblemHelp(
        "A site joins, or is invited, after the start of a session whose method takes no sites "
        "then.",
        "Invite sites before the start. Ask the analyst for a new session.",
    ),
    "sites-unsuitable": ProblemHelp(
        "The session cannot start, because its method cannot serve the sites that have joined: "
        "for example, they share no features.",
        "`detail` says what is missing. Invite other sites, or create another session.",
    ),
    "quorum-missing": ProblemHelp(
        "Too few sites have joined to start the session, or too few submissions are stored to "
        "close the round.",
        "Wait, invite more sites, or move the deadline. If too few sites are left in a round, "
        "cancel the session and create another one.",
    ),
    "needs-all-sites": ProblemHelp(
        "Somebody closes a round of a phase that needs the submissions of all its sites.",
        "Wait for the missing sites, or exclude those that cannot answer.",
    ),
    "submission-differs": ProblemHelp(
        "The site has already answered the round with other contents. The first submission counts.",
        "Wait for the next task. A client must keep the exact bytes of a submission, to send the "
        "same ones again.",
    ),
    "task-mismatch": ProblemHelp(
        "The phase or the digest of the submission is not that of the site's task in this round.",
        "Read the task again, and compute the submission from it.",
    ),
    "last-operator-token": ProblemHelp(
        "After this, no operator would have a valid token.",
        "Issue another operator token first. To replace one that is lost or stolen, run "
        "`fedclust-service operator-token` on the coordinator's machine.",
    ),
    "result-not-ready": ProblemHelp(
        "The session has not completed yet, or it has ended without a result.",
        "With `Retry-After`, wait until the session has completed. Without it there will be no "
        "result: the session's state says why.",
    ),
    "round-closed": ProblemHelp(
        "A submission arrives for a round that does not collect any more.",
        "Read the task again, and answer the round that `current_round` names, if there is one.",
    ),
    "precondition-failed": ProblemHelp(
        "A change has an `If-Match` that is not the present ETag: somebody else changed it first.",
        "Read it again, decide whether the change still fits, and send it with the new ETag.",
    ),
    "body-too-large": ProblemHelp(
        "The body has more bytes than the setting `FEDCLUST_BODY_LIMIT` allows, or too many "
        "values.",
        "`detail` names the limit. Ask for fewer clusters or features, and send arrays in the "
        "binary form. An operator can raise the limit in bytes.",
    ),
    "unsupported-media-type": ProblemHelp(
        "The route does not take bodies of this `Content-Type`, or the body is compressed.",
        "Send a type that `detail` names, without `Content-Encoding`.",
    ),
    "invalid": ProblemHelp(
        "A field or a parameter is missing, unknown, or breaks a rule.",
        "Correct what `errors` names, and send the request again.",
    ),
    "disclosure-refused": ProblemHelp(
        "A number in the submission rests on too few persons. Nothing was stored.",
        "Do not send it again. The SDK checks the same rules before it sends, so upgrade it, or "
        "correct your own client.",
    ),
    "too-many-requests": ProblemHelp(
        "The token has too many requests open, or too many attempts to sign in failed from one "
        "address with it, or with tokens that do not exist.",
        "Wait as long as `Retry-After` says, and keep fewer requests open.",
    ),
    "headers-too-large": ProblemHelp(
        "The head of the request is larger than the coordinator reads.",
        "`detail` names the limit. Send fewer headers; look at those that a proxy adds.",
    ),
    "internal": ProblemHelp(
        "The coordinator failed for a reason that it did not expect.",
        "Try again after `Retry-After`. If it happens again, give the `request_id` to the "
        "operator, who finds the cause in the log.",
    ),
    "stored-data-damaged": ProblemHelp(
        "Stored bytes of the session have changed since they were written.",
        "The operator looks for the cause and restores a backup, or the session is created again.",
    ),
    "unavailable": ProblemHelp(
        "The coordinator starts or stops, its database does not answer, too many requests are "
        "open, or it does not run the versions that the session fixes.",
        "Send the same request again after `Retry-After`. If that does not help, the operator "
        "looks at `/readyz` and the log.",
    ),
}
