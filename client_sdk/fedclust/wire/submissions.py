"""Bodies of submissions in JSON or in the binary form."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from fedclust.schema.field_names import UnknownField, field_errors
from fedclust.schema.model import Model
from fedclust.schema.task import Phase
from fedclust.wire import codec
from fedclust.wire.errors import FieldError
from fedclust.wire.models import SubmissionHead, read_reply

JSON = "application/json"
BINARY = codec.CONTENT_TYPE
P = TypeVar("P")
M = TypeVar("M", bound=BaseModel)


class SubmissionError(ValueError):
    """A body that does not fit its model; ``errors`` names the fields."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("the body is not a valid submission")
        self.errors = errors


class Submission(SubmissionHead, Generic[P]):
    """A site's answer to one round; ``payload`` null is an empty answer."""

    payload: P | None


def read_submission_head(body: bytes, media: str) -> SubmissionHead:
    """Read only the phase and the task that a body answers; SubmissionError."""
    return read_body(SubmissionHead, body, media, extra="ignore")


def read_submission(phase: Phase, body: bytes, media: str) -> tuple[SubmissionHead, Model | None]:
    """Read a body and its payload strictly, None for an empty answer; SubmissionError."""
    model: Any = Submission.__class_getitem__(phase.payload)
    submission: Any = read_body(model, body, media)
    return submission, submission.payload


def read_body(
    model: type[M],
    body: bytes,
    media: str,
    unknown: UnknownField = None,
    extra: Literal["forbid", "ignore"] = "forbid",
) -> M:
    """Read a body in either form strictly; SubmissionError.

    ``unknown`` is that of :func:`fedclust.schema.field_names.field_errors`.
    """
    try:
        return read_reply(model, body, media, extra)
    except codec.CodecError as error:
        raise SubmissionError(
            [FieldError(pointer="", rule="binary-form", message=str(error))]
        ) from None
    except ValidationError as error:
        raise SubmissionError(field_errors(error, unknown=unknown)) from None


def write_submission(phase: str, digest: str, payload: Model | None, media: str = BINARY) -> bytes:
    """Return the body that a site sends; equal payloads give equal bytes."""
    tree = {
        "phase": phase,
        "task_digest": digest,
        "payload": None if payload is None else codec.to_tree(payload),
    }
    return codec.encode(tree) if media == BINARY else codec.to_json(tree)


def payload_bytes(payload: Model | None) -> bytes | None:
    """Return the stored form of a payload."""
    return None if payload is None else codec.encode_model(payload)


def payload_from_bytes(phase: Phase, data: bytes | None) -> Model | None:
    """Inverse of :func:`payload_bytes`."""
    return None if data is None else codec.decode_model(phase.payload, data)
