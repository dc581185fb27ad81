"""What the two apps say to each other: one record of bytes in each message of Flower."""

from typing import Annotated, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import Field

from fedclust.schema.model import FeatureName, Model
from fedclust.wire import codec
from fedclust.wire.models import Line, ResultDocument, TaskDocument

#: Under which a message, and the context of a virtual site, hold what is ours.
KEY = "fedclust"
M = TypeVar("M", bound=Model)


class Ask(Model):
    """What the server asks of a site: to declare itself, to answer a round, or to end.

    Attributes
    ----------
    definition : bytes
        In canonical form; its SHA-256 is what the site has approved.
    round : int
    task : TaskDocument or None
        The task of the round; None if the site is asked to declare itself.
    answered : tuple of int
        The rounds that this site has answered.
    ended : bool
        Whether the session has ended; with a ``result`` if it completed.
    """

    definition: bytes
    round: int = 0
    task: TaskDocument | None = None
    answered: tuple[int, ...] = ()
    ended: bool = False
    result: ResultDocument | None = None


class Declaration(Model):
    """What a site declares, a part of :class:`fedclust.wire.models.Participation`."""

    features: Annotated[tuple[FeatureName, ...], Field(max_length=10_000)]
    size_band: Line
    min_group_size: int | None = None
    points_short: bool = False


class Reply(Model):
    """A site's reply; if it is ``refused``, it holds nothing else.

    Attributes
    ----------
    refused : str
        Why, in one of few fixed words: never a text about rows.
    final : bool
        Whether the site refuses the task itself, and with it the session.
    site : str
        The site's name.
    declared : Declaration or None
    body : bytes or None
        The exact bytes of the answer, as over HTTPS.
    """

    refused: Annotated[str, Field(pattern="^[a-z -]{0,60}$")] = ""
    final: bool = False
    site: str = ""
    declared: Declaration | None = None
    body: bytes | None = None


def pack(model: Model) -> RecordDict:
    """Return the content of a message."""
    return RecordDict({KEY: ConfigRecord({"body": codec.encode_model(model)})})


def unpack(kind: type[M], message: Message) -> M:
    """Return what a message holds; ValueError or KeyError for another's."""
    return codec.decode_model(kind, message.content[KEY]["body"])
