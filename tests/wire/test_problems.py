"""The catalogue of problems."""

import pytest
from pydantic import ValidationError

from fedclust.definition.study import StudyCreate
from fedclust.schema.field_names import field_errors
from fedclust.schema.model import Model
from fedclust.wire.errors import FieldError, problem


def test_at_most_twenty_errors_are_listed() -> None:
    errors = [FieldError(pointer=f"/{n}", rule="r", message="m") for n in range(30)]
    assert len(problem("invalid", "Mend these.", errors).errors) == 20


def test_errors_never_repeat_what_was_sent() -> None:
    class Inner(Model):
        number: int

    class Outer(Model):
        inner: dict[str, Inner]

    secret = "patient_4711"
    body = f'{{"inner": {{"{secret}": {{"number": "{secret}", "{secret}": 1}}}}}}'
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate_json(body)
    errors = field_errors(caught.value)
    assert len(errors) == 2
    assert secret not in repr(errors)
    assert {error.pointer for error in errors} == {"/inner/number", "/inner"}


def test_a_wrong_role_is_named_without_what_was_sent() -> None:
    body = '{"name": "a", "sites": ["a"], "features": [{"name": "x", "role": "patient_4711"}]}'
    with pytest.raises(ValidationError) as caught:
        StudyCreate.model_validate_json(body)
    (missing, error) = field_errors(caught.value)
    assert missing.pointer == "/purpose"
    assert error.pointer == "/features/0/role"
    assert error.message == "it should be 'feature' or 'outcome'"
