"""Inserts the properties of a job and the scheduler's own variables into the text of a script.

Two things are replaced, in one pass, so that inserted text is never replaced again:

* placeholders: ``{name}`` and ``{name!q}``, where ``name`` is a property of the job, and ``{{name}}``, which stands for
  a literal ``{name}``. A brace after a ``$`` belongs to the shell, and so does every other brace.
* core variables: ``$CLUSTERJOB_ID``, ``${CLUSTERJOB_ID}``, ``${CLUSTERJOB_ID:-x}`` and the like; ``LADING_`` is a
  synonym of ``CLUSTERJOB_``.

The names are those of clusterjob (https://clusterjob.readthedocs.io, "Core environment variables").
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

CORE_VARIABLES = ("ID", "WORKDIR", "SUBMIT_HOST", "NAME", "ARRAY_INDEX", "NODELIST")

# This form is only used for properties.
_QUOTED = re.compile(r"(?<![{$])\{([A-Za-z_][\w.-]*)!q\}")
# Text that no POSIX shell treats specially anywhere outside of quotes: the characters that shlex.quote considers safe,
# and letters of all languages. A ~ at the beginning names the home folder and does no harm.
_PLAIN = re.compile(r"(?:~(?=/|\Z))?[\w@%+=:,./-]*")
_BARE_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
# A longer name with the same beginning is another variable. In braces, # or ! may precede the name and an operation may
# follow it.
_CORE_NAME = rf"(?:CLUSTERJOB|LADING)_(?P<{{}}>{'|'.join(CORE_VARIABLES)})(?![A-Za-z0-9_])"
# Text that a shell passes on unchanged: single-quoted text, and here-documents whose word is quoted. The pattern also
# matches everything else that quotes text or comments out a line, so that an apostrophe in it starts no quotation.
_PASSED_ON = re.compile(
    r"""\\. | "(?:\\.|[^"\\])*" | (?<![^\s;&|()])\#[^\n]*
    | (?P<own>'[^']*' | <<-?[ ]*(?P<quote>['"])(?P<word>\w+)(?P=quote)[^\n]*\n.*?^\t*(?P=word)$)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_CORE = rf"\$(?:{_CORE_NAME.format('bare')}|\{{(?P<before>[#!]?){_CORE_NAME.format('braced')}(?P<close>\}})?)"


class SubstitutionError(ValueError):
    """A value cannot be inserted at its placeholder. The message names the placeholder and what to write instead."""


@dataclass(frozen=True, slots=True)
class SubstitutedText:
    """A text with everything inserted.

    :param computed: the core variables in the text that the scheduler does not have, so that a shell computes them
    :param aliases: those of them that the text takes apart (``${LADING_NODELIST%% *}``): a shell variable must be set
        to each before
    :param missing: optional names that have no value; their placeholders stay in the text
    """

    text: str
    computed: frozenset[str] = frozenset()
    aliases: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Substitution:
    """The values to insert into texts.

    :param properties: the values of the placeholders by name
    :param variables: the shell expression for each core variable; empty: core variables are not replaced
    :param optional: properties that every job can have; the placeholder of one without a value is kept
    """

    properties: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    optional: Collection[str] = ()

    def unknown(self, text: str) -> list[str]:
        """Return the names in ``{name!q}`` that are not properties: a shell would treat these placeholders as text."""
        return sorted(set(_QUOTED.findall(text)) - {*self.properties, *self.optional})

    def doubtful(self, text: str) -> tuple[list[str], list[str]]:
        """Return what :meth:`fill` may replace against the author's intention.

        The first list has the placeholders in text that a shell passes on to another program, which may use the same
        notation; the second has literals, which lose a pair of braces.
        """
        spans = [match.span() for match in _PASSED_ON.finditer(text) if match["own"]]
        placeholders, literals = set(), set()
        for match in self._pattern().finditer(text):
            if match["literal"]:
                literals.add(match["literal"])
            elif match["name"] in self.properties and not match["quoted"]:
                at = bisect(spans, match.span()) - 1
                if at >= 0 and match.end() <= spans[at][1]:
                    placeholders.add(match["name"])
        return sorted(placeholders), sorted(literals)

    def fill(self, text: str) -> SubstitutedText:
        """Insert everything.

        :raises SubstitutionError: a value has characters that are special to a shell and is not quoted with ``!q``
        """
        computed: set[str] = set()
        aliases: set[str] = set()
        missing: set[str] = set()

        def replacement(match: re.Match[str]) -> str:
            if match["literal"]:
                return f"{{{match['literal']}}}"
            if match["name"] is None:
                return self._variable(match, computed, aliases)
            if match["name"] in self.properties:
                return self._value(match["name"], quoted=bool(match["quoted"]))
            missing.add(match["name"])
            return match[0]

        filled = self._pattern().sub(replacement, text)
        return SubstitutedText(filled, frozenset(computed), frozenset(aliases), frozenset(missing))

    def _pattern(self) -> re.Pattern[str]:
        names = "|".join(map(re.escape, sorted({*self.properties, *self.optional}))) or "(?!)"
        literal = rf"\{{\{{(?P<literal>(?:{names})(?:!q)?)\}}\}}"
        placeholder = rf"(?<!\$)\{{(?P<name>{names})(?P<quoted>!q)?\}}"
        return re.compile(f"{literal}|{placeholder}|{_CORE}")

    def _value(self, name: str, *, quoted: bool) -> str:
        value = self.properties[name]
        if quoted:
            return shlex.quote(value)
        if not _PLAIN.fullmatch(value):
            raise SubstitutionError(
                f"{{{name}}} is {value!r}, which a shell would not read as plain text; "
                f"write {{{name}!q}} to have it quoted, or {{{{{name}}}}} for a literal {{{name}}}"
            )
        return value

    def _variable(self, match: re.Match[str], computed: set[str], aliases: set[str]) -> str:
        name = match["bare"] or match["braced"]
        expression = self.variables.get(name)
        if expression is None:
            return match[0]
        whole = bool(match["bare"]) or (bool(match["close"]) and not match["before"])
        own = _BARE_VARIABLE.fullmatch(expression)
        if own is None:
            computed.add(name)
            if whole:
                return expression
            aliases.add(name)
        variable = (own[1] or own[2]) if own else alias(name)
        return f"${variable}" if match["bare"] else f"${{{match['before']}{variable}{match['close'] or ''}"


def alias(name: str) -> str:
    """Return the shell variable that stands for a core variable which the scheduler does not have."""
    return f"LADING_{name}"
