"""What others have written, as JSON: it is checked when it is read, whatever its writer meant."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError


def _text(value: Any) -> str:
    # pydantic's own str refuses halves of surrogate pairs, and output that is no UTF-8 is read as such.
    if not isinstance(value, str):
        raise ValueError(f"text is expected, not {type(value).__name__}")
    return value


Text = Annotated[str, PlainValidator(_text)]


class JsonModel(BaseModel):
    """Something that others write and this process reads. What it does not know in it is a newer writer's."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


def checked(model: type[JsonModel], found: object) -> dict[str, Any]:
    """What was found, if it is as the model says; what it leaves out is left out.

    :raises ValueError: it is not; the message says what is wrong
    """
    try:
        result = model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"it makes no sense: {error}") from None
    return {name: getattr(result, name) for name in result.model_fields_set}


def parsed(text: bytes) -> object:
    """The JSON value that a text is.

    :raises ValueError: it is none
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
