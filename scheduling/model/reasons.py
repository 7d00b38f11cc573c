"""Reasons as data: a code with parameters, rendered as a sentence only where it is shown. Pure.

Decisions and observations produce a :class:`Reason`. Jobs can therefore be grouped by code, site and limit, and a
number that changes does not start a new group. :mod:`lading.scheduling.model.reason_codes` defines the codes; a code
that is missing there comes from a newer agent. That table and :mod:`lading.scheduling.model.reason_text`, which writes
the sentences, are imported when they are needed: each batch job imports this module, and hardly any has a reason to
show.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lading.scheduling.model.light_dataclasses import dataclass, replace
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.nesting import too_deep
from lading.scheduling.text.printable import storable

if TYPE_CHECKING:
    from lading.scheduling.model.reason_codes import Code

# The types of a parameter. A tuple holds names, or amounts of resources in the order of their fields.
Value = str | int | float | bool | None | tuple[str | float, ...]
# The longest code of a reason from another process, characters.
LONGEST_CODE = 40
# MySQL's TEXT holds 65,535 bytes.
MOST_JSON = 60_000
# The width of the database column for the name of a limit, characters.
LONGEST_LIMIT = 250


class _Hashed:
    __slots__ = ("_hash",)

    _hash: int


@dataclass(frozen=True, slots=True)
class Reason(_Hashed):
    """Why a job waits, can never run or has ended, or why a machine was released or failed.

    :param code: a key of :data:`~lading.scheduling.model.reason_codes.CODES`
    :param params: the parameters of its sentence as (name, value), sorted by name
    :param also: further reasons, shown after its sentence or within it
    """

    code: str
    params: tuple[tuple[str, Value], ...] = ()
    also: tuple[Reason, ...] = ()

    def __post_init__(self) -> None:
        # Thousands of jobs share a few reasons, which are compared and looked up once for every job.
        object.__setattr__(self, "_hash", hash((self.code, self.params, self.also)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Reason):
            return NotImplemented
        return self._hash == other._hash and (self.code, self.params, self.also) == (
            other.code,
            other.params,
            other.also,
        )

    def __reduce__(self) -> tuple[type[Reason], tuple[Any, ...]]:
        # The stored hash is left out, because hashes of text differ between processes.
        return Reason, (self.code, self.params, self.also)

    @property
    def meaning(self) -> Code:
        from lading.scheduling.model.reason_codes import CODES, UNKNOWN

        return CODES.get(self.code, UNKNOWN)

    @property
    def site(self) -> str | None:
        """The site that the reason is about; None if it is not about one site."""
        site = dict(self.params).get("site")
        return None if site is None else str(site)

    @property
    def limit(self) -> str | None:
        """The name of the limit that is reached; None if the reason is not a limit."""
        from lading.scheduling.model.reason_text import SENTENCE

        template = self.meaning.limit
        return SENTENCE.vformat(template, (), dict(self.params))[:LONGEST_LIMIT] if template else None

    @property
    def group(self) -> tuple[str, str | None, str | None]:
        """The key under which jobs are grouped: code, site and limit, but no numbers."""
        return self.code, self.site, self.limit

    @property
    def groups(self) -> tuple[tuple[str, str | None, str | None], ...]:
        """Its own group and the groups of all further reasons."""
        return (self.group, *(each for more in self.also for each in more.groups))

    def at(self, site: str) -> Reason:
        """The same reason, about a site unless it already names one."""
        return self if self.site is not None else replace(self, params=_sorted({**dict(self.params), "site": site}))

    def with_also(self, *more: Reason) -> Reason:
        return replace(self, also=(*self.also, *more)) if more else self

    @property
    def sentence(self) -> str:
        """The sentence as a part of another one, without ``waits:``."""
        return self._phrase(is_first=True)

    def _phrase(self, *, is_first: bool = False) -> str:
        also = "; ".join(each._phrase() for each in self.also)
        clause = self._clause(also, is_first=is_first)
        return clause if not also or self.meaning.has_also_within else f"{clause}; {also}"

    def _clause(self, also: str, *, is_first: bool) -> str:
        from lading.scheduling.model.reason_codes import Form
        from lading.scheduling.model.reason_text import SENTENCE

        code, params = self.meaning, {**dict(self.params), "code": self.code, "also": also}
        at = f"site {self.site!r}: " if self.site is not None and not code.names_site else ""
        it = code.form.value if code.form is Form.NEVER and (at or not is_first) else ""
        return at + it + SENTENCE.vformat(code.sentence, (), params)

    def __str__(self) -> str:
        from lading.scheduling.model.reason_codes import Form

        is_wait = self.meaning.form is Form.WAIT or (self.meaning.form is Form.NEVER and self.site is not None)
        return (Form.WAIT.value if is_wait else "") + self.sentence

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"code": self.code}
        if self.params:
            data["params"] = dict(self.params)
        if self.also:
            data["also"] = [each.to_data() for each in self.also]
        return data

    def to_json(self) -> str:
        """A canonical text: equal reasons have equal texts. Further reasons are cut off at what a column can hold."""
        text = self._to_json(len(self.also))
        if len(text.encode()) > MOST_JSON:
            kept = bisect(range(1, len(self.also) + 1), MOST_JSON, key=lambda most: len(self._to_json(most).encode()))
            text = self._to_json(kept)
        return text

    def _to_json(self, most: int) -> str:
        kept = self if most == len(self.also) else replace(self, also=self.also[:most])
        return json.dumps(kept.to_data(), sort_keys=True, ensure_ascii=False)

    @classmethod
    def of_data(cls, data: Mapping[str, Any], *, is_whole: bool = True) -> Reason:
        """A reason that another process has sent.

        :param is_whole: whether all parameters of its code are required; another version may leave some out
        :raises ValueError: the data is not a reason, or lacks a required parameter
        """
        return cls._read(data, is_strict=is_whole)

    @classmethod
    def of_json(cls, text: str) -> Reason:
        """A reason from the store; one that another version stored may lack parameters.

        :raises ValueError: the text is not a reason
        """
        return cls._read(json.loads(text), is_strict=False)

    @classmethod
    def _read(cls, data: Mapping[str, Any], levels: int = 4, *, is_strict: bool) -> Reason:
        from lading.scheduling.model.reason_codes import CODES, UNKNOWN
        from lading.scheduling.model.reason_text import parameters

        try:
            code = storable(data["code"])[:LONGEST_CODE]
            named = {*parameters(CODES.get(code, UNKNOWN)), "site"} - {"code", "also"}
            params = {name: _value(each) for name, each in dict(data.get("params") or {}).items() if name in named}
            if is_strict and (missing := sorted(named - params.keys() - {"site"})):
                raise ValueError(f"{', '.join(missing)} is missing")
            more = list(data.get("also") or ())[:30]
            if more and not levels:
                raise ValueError(too_deep())
            also = tuple(cls._read(each, levels - 1, is_strict=is_strict) for each in more)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{str(data)[:200]} is not a reason: {type(error).__name__}: {error}") from error
        return cls(code, _sorted(params), also)


def because(code: str, /, **params: Any) -> Reason:
    """A reason.

    :param code: a key of :data:`~lading.scheduling.model.reason_codes.CODES`
    :param params: the parameters of its sentence, and ``site`` if it is about one
    """
    return Reason(code, _sorted({name: _value(value) for name, value in params.items()}))


def free_text(text: str) -> Reason:
    """A message of a plugin or of a third party's site."""
    return because("free_text", text=text)


def combined(reasons: Iterable[Reason]) -> Reason:
    """Combine reasons, each of which would suffice alone. The one whose code comes first in the table leads, and the
    others follow in their order.

    :raises ValueError: there are no reasons
    """
    from lading.scheduling.model.reason_codes import RANKS

    each = list(reasons)
    if len(each) == 1:
        return each[0]
    first = min(range(len(each)), key=lambda number: (RANKS.get(each[number].code, len(RANKS)), number))
    return each[first].with_also(*each[:first], *each[first + 1 :])


def _sorted(params: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(params.items()))


def _value(value: Any) -> Value:
    if isinstance(value, Resources):
        return value.cpus, value.memory, value.disk, value.gpus
    if isinstance(value, (list, tuple)):
        parts = value[:30]
        return tuple(each if isinstance(each, (int, float)) else storable(each)[:250] for each in parts)
    if isinstance(value, str):
        return storable(value)
    if value is None or isinstance(value, (int, float)):
        return value
    raise TypeError(f"{value!r} is not a parameter of a reason; valid: text, numbers, and sequences of them")


NEW = because("new")
