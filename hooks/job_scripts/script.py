"""A job script: a user's script and its requests, rendered for any batch system.

The model is that of clusterjob (https://clusterjob.readthedocs.io, "Model"). Everything here is text in, text out; only
``write`` touches a disk.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from lading.hooks.batch.directives import COMMON_RESOURCES, given
from lading.hooks.batch.system import ArrayRange, BatchJobRequest, BatchSystem, Profile, Unsupported
from lading.hooks.files.addresses import fitting
from lading.hooks.job_scripts.properties import REPLACED, JobProperties, JobScriptWarning, format_value, likely_property
from lading.hooks.job_scripts.substitution import SubstitutedText, Substitution, SubstitutionError, alias
from lading.scheduling.text.printable import shortened
from lading.scheduling.text.units import parse_count, parse_memory, parse_time

SHELL = "/bin/bash"
# Bytes of a file's name, without the prefixes and suffixes that are added to it.
LONGEST_NAME = 200
# How a variable is exported, by the family of the shell.
EXPORTS = {"sh": "export {name}={value}", "csh": "setenv {name} {value}"}
_SHELLS = dict.fromkeys(("sh", "ash", "bash", "dash", "ksh", "ksh93", "mksh", "rbash", "zsh"), "sh")
_SHELLS |= dict.fromkeys(("csh", "tcsh"), "csh")
# Native memory resources that are no misspelling of "mem", by batch system.
_MEMORY = {"pbspro": ("pmem", "vmem"), "torque": ("pmem", "vmem"), "sge": ("tmem",)}

# Lines that submit commands read as directives anywhere in a script: qsub of PBS skips blanks before the prefix, no
# system needs a blank after it, and sbatch also reads the prefixes of others (sbatch, "--ignore-pbs") and its own old
# one.
_DIRECTIVE = re.compile(r"\s*(?:#SBATCH|#PBS|#BSUB|#SLURM\s+-|#\$\s*-)")


class JobScriptError(ValueError):
    """A job script cannot be rendered. The message names the line or the value, what is valid, and what to do."""


class JobScript:
    """A script that a batch system runs, and its requests.

    >>> script = JobScript("srun hello {greeting}", nodes=2, ppn=32, time="2h", attributes={"greeting": "you"})

    :param body: the script, with or without ``#!``, without directives; ``{name}`` stands for the property of that name
        and ``$CLUSTERJOB_ID`` for the scheduler's own variable, see :mod:`lading.hooks.job_scripts.substitution`
    :param attributes: more properties, for placeholders
    :param aux_scripts: other scripts by file name, rendered like the body and placed next to it
    :param resources: ``jobname``, ``queue``, ``time`` (seconds or text such as ``"2h"``), ``nodes``, ``ppn`` (processes
        per node), ``threads`` (per process), ``mem`` (per node; MiB or text such as ``"8 GiB"``), ``stdout``,
        ``stderr``, ``array`` (the elements of a job array, and how many run at once: ``"1-10%4"``); ``shell``,
        ``prologue``, ``epilogue``, ``filename``; any other name is a directive of the scheduler, with True for a bare
        flag. None and an empty text remove the default of the site's profile
    :raises PropertyError: a name is not valid
    """

    def __init__(
        self,
        body: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        aux_scripts: Mapping[str, str] | None = None,
        **resources: Any,
    ) -> None:
        self.body = body
        self.properties = JobProperties.from_mapping(resources, attributes)
        self.aux_scripts = dict(aux_scripts or {})

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments with which another script makes the same requests: resources and shell."""
        shell = {key: value for key, value in self.properties.attributes.items() if key == "shell"}
        return {**self.properties.resources, **shell}

    def over(self, lower: JobProperties) -> JobScript:
        """Return the same script over a lower layer of properties, such as a site's profile or an INI file."""
        script = JobScript(self.body, aux_scripts=self.aux_scripts)
        script.properties = self.properties.over(lower)
        return script

    def request(self) -> BatchJobRequest:
        """Return what the script requests from a batch system.

        :raises JobScriptError: a resource has a value that is not valid
        """
        resources = {key: value for key, value in self.properties.resources.items() if given(value)}
        common: dict[str, Any] = {key: _common(key, resources[key]) for key in COMMON_RESOURCES if key in resources}
        native = {key: _native(key, value) for key, value in resources.items() if key not in COMMON_RESOURCES}
        return BatchJobRequest(**common, native=native)

    def render(self, system: BatchSystem, profile: Profile | None = None) -> str:
        """Return the script as it is submitted.

        It warns of placeholders of common resources that have no value, which stay in the body; of native directives
        whose name is nearly that of a property; and of a script that the submit command would refuse (``BatchHook``
        submits a wrapper that only runs the script, so there it works).

        :raises JobScriptError: the body has directives, or a value is not valid or cannot be inserted at its
            placeholder
        :raises ValueError: the batch system has no option for a resource
        """
        text = self._render(system, profile)
        try:
            system.refuse_script(text)
        except Unsupported as error:
            warnings.warn(f"{error}; BatchHook can submit it nevertheless", JobScriptWarning, stacklevel=2)
        return text

    def doubts(self) -> list[str]:
        """Return a sentence for each replacement in the body that may have been meant for another program."""
        properties = self.properties.placeholders
        placeholders, literals = Substitution(properties, {}, COMMON_RESOURCES).doubtful(_with_newlines(self.body))
        lost = [(f"{{{{{name}}}}}", f"{{{name}}}") for name in literals]
        return [
            f"the body has {{{name}}} in quotes, which becomes {shortened(properties[name])}; "
            f"write {{{{{name}}}}} to keep {{{name}}}"
            for name in placeholders
        ] + [f"the body has {text}, which becomes {left}; write {{{text}}} to keep {text}" for text, left in lost]

    def _render(self, system: BatchSystem, profile: Profile | None) -> str:
        body = _with_newlines(self.body)
        _refuse_directives(body, system)
        request = self.request()
        _warn_of_slips(request, system)
        filled = self._fill("body", body, system.variables)
        _refuse_directives(filled.text, system)
        shebang, rest = _split_shebang(filled.text, self.shell())
        lines = [f"{system.prefix} {directive}" for directive in system.directives(request, profile or Profile())]
        head = [shebang, *lines, *_preamble(shebang, request, filled, system)]
        return "".join(f"{_one_line('directive', line)}\n" for line in head) + rest

    def render_auxiliary(self, system: BatchSystem) -> dict[str, str]:
        """Return the auxiliary scripts by file name; they run inside the job.

        :raises JobScriptError: a name is not a file name, or a value cannot be inserted
        """
        rendered = {}
        for name, text in self.aux_scripts.items():
            what = f"auxiliary script {_file_name(name)!r}"
            filled = self._fill(what, _with_newlines(text), system.variables)
            shebang, rest = _split_shebang(filled.text, self.shell())
            head = [shebang, *_aliases(shebang, filled, system)]
            rendered[name] = "\n".join(head) + "\n" + rest
        return rendered

    def render_prologue(self) -> str | None:
        """Return the script to run on the submitting side before submission; None: nothing.

        Core variables are not replaced, because no batch job exists yet.

        :raises JobScriptError: a value cannot be inserted
        """
        return self._render_here("prologue")

    def render_epilogue(self) -> str | None:
        """Return the script to run once on the submitting side after the job has finished; None: nothing.

        :raises JobScriptError: a value cannot be inserted
        """
        return self._render_here("epilogue")

    @property
    def filename(self) -> str:
        """The file name of the main script: the attribute ``filename``, or a name derived from the job's."""
        name = self.properties.attributes.get("filename")
        if name:
            return _file_name(name)
        jobname = self.properties.resources.get("jobname")
        name = re.sub(r"[^\w.-]", "_", str(jobname) if given(jobname) else "job", flags=re.ASCII).lstrip(".-")
        return f"{fitting(name, LONGEST_NAME) or 'job'}.sh"

    def files(self, system: BatchSystem, profile: Profile | None = None) -> dict[str, str]:
        """Return all files that are placed at the site, by name: the main script first, then the auxiliary scripts.

        :raises JobScriptError: as :meth:`render`; or an auxiliary script has the name of the main one
        """
        if self.filename in self.aux_scripts:
            raise JobScriptError(f"an auxiliary script is called {self.filename!r} like the main one; rename one")
        return {self.filename: self._render(system, profile), **self.render_auxiliary(system)}

    def write(self, folder: Path, system: BatchSystem, profile: Profile | None = None) -> Path:
        """Write all files into a folder of this machine, for their owner only; return the path of the main script.

        :raises OSError: a file cannot be written
        """
        files = self.files(system, profile)
        for name, text in files.items():
            path = folder / name
            path.touch(mode=0o700)
            path.chmod(0o700)
            path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        return folder / self.filename

    def _render_here(self, which: str) -> str | None:
        text = self.properties.attributes.get(which)
        if not text:
            return None
        filled = self._fill(which, _with_newlines(text), {}, optional=(*COMMON_RESOURCES, *REPLACED))
        lost = sorted(filled.missing.intersection(REPLACED))
        if lost:
            raise JobScriptError(
                f"the {which} has {{{lost[0]}}}, which the Airflow connection of the site has replaced; "
                f"give attributes={{{lost[0]!r}: ...}} if the script itself needs it"
            )
        shebang, rest = _split_shebang(filled.text, self.shell())
        return f"{shebang}\n{rest}"

    def shell(self) -> str:
        """Return the path of its shell, absolute; the ``#!`` of a body takes precedence over it.

        :raises JobScriptError: it is not an absolute path, or has more than one line
        """
        shell = _one_line("shell", self.properties.attributes.get("shell") or SHELL)
        if not PurePosixPath(shell).is_absolute():
            raise JobScriptError(f"shell {shell!r} is not an absolute path; write for example {SHELL!r}")
        return shell

    def _fill(
        self, what: str, text: str, variables: Mapping[str, str], optional: tuple[str, ...] = COMMON_RESOURCES
    ) -> SubstitutedText:
        substitution = Substitution(self.properties.placeholders, variables, optional)
        for name in substitution.unknown(text):
            known = ", ".join(sorted(substitution.properties)) or "none"
            raise JobScriptError(
                f"the {what} has {{{name}!q}}, but the job has no property {name!r}; it has {known}: give {name} as an "
                "attribute, or write one of them"
            )
        try:
            filled = substitution.fill(text)
        except SubstitutionError as error:
            raise JobScriptError(f"in the {what}: {error}") from None
        for name in sorted(filled.missing.intersection(COMMON_RESOURCES)):
            message = f"the {what} has {{{name}}}, but the job has no {name}; it stays as it is"
            warnings.warn(message, JobScriptWarning, stacklevel=4)
        return filled


def _common(key: str, value: object) -> str | int | ArrayRange:
    parse: Callable[[object], Any] = {"time": parse_time, "mem": parse_memory, "array": _array}.get(key, _whole)
    if key in ("jobname", "queue", "stdout", "stderr"):
        if isinstance(value, bool):
            raise JobScriptError(f"{key} = {format_value(value)} is not text")
        return _one_line(key, str(value))
    if key == "nodes" and isinstance(value, (list, tuple)):
        raise JobScriptError(
            f"nodes: {shortened(value)} is not valid; valid: a whole number above 0, for example 4; only a task's hint "
            "nodes can be a range"
        )
    try:
        result: int | ArrayRange = parse(value)
    except ValueError as error:
        raise JobScriptError(f"{key}: {error}") from None
    return result


def _whole(value: object) -> int:
    with suppress(ValueError):
        count = parse_count(value)
        if count.is_integer():
            return int(count)
    raise ValueError(f"{shortened(value)} is not valid; valid: a whole number above 0, for example 4")


def _array(value: object) -> ArrayRange:
    if not isinstance(value, str):
        raise ValueError(f"{shortened(value)} is not text; write for example '1-10' or '1-10%4'")
    return ArrayRange.parse(value.strip())


def _native(key: str, value: object) -> str | bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str | int | float):
        raise JobScriptError(f"{key} = {shortened(value)} cannot be a directive: it is not text, a number or a boolean")
    return _one_line(key, str(value))


def _warn_of_slips(request: BatchJobRequest, system: BatchSystem) -> None:
    known = {*system.synonyms, *system.synonyms.values(), *_MEMORY.get(system.name, ())}
    for key, value in request.native.items():
        if value is False or key in known or key.replace("_", "-") in known or (meant := likely_property(key)) is None:
            continue
        message = f"{key} becomes the directive {system.native_directive(key, value or True)}; did you mean {meant}?"
        warnings.warn(message, JobScriptWarning, stacklevel=3)


def _one_line(what: str, text: str) -> str:
    """Return the text if it has no character that could end its line."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            shown = shortened(text)
            raise JobScriptError(
                f"{what} {shown} has the control character {character!r}; write one line without such characters"
            )
    return text


def _file_name(name: str) -> str:
    if PurePosixPath(name).name != name or name in ("", ".", ".."):
        raise JobScriptError(f"{shortened(name)} is not a file name; write one without folders")
    if len(name.encode(errors="surrogateescape")) > LONGEST_NAME:
        raise JobScriptError(f"file name {shortened(name)} is too long; it can have {LONGEST_NAME} bytes at most")
    return _one_line("file name", name)


def _with_newlines(text: str) -> str:
    """Return the text with Unix line ends: sbatch refuses CRLF, and shells take the CR for a part of the last word."""
    unix = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if "\0" in unix:
        raise JobScriptError(f"line {unix[: unix.index(chr(0))].count(chr(10)) + 1} has a NUL character; remove it")
    return unix if not unix or unix.endswith("\n") else unix + "\n"


def _refuse_directives(body: str, system: BatchSystem) -> None:
    for number, line in enumerate(body.split("\n"), 1):
        # qsub of SGE reads every line that begins with its prefix; for the other systems "#$HOME" is a comment.
        if _DIRECTIVE.match(line) or line.startswith(system.prefix):
            raise JobScriptError(
                f"line {number} of the body is a directive: {line.strip()!r}; "
                "remove it and request the same as a resource, so that it works on every batch system"
            )


def _split_shebang(text: str, shell: str) -> tuple[str, str]:
    """Return the line that names the interpreter, created if the text has none, and the rest of the text."""
    stripped = text.lstrip("\n")
    if not stripped.startswith("#!"):
        return f"#!{shell}", text
    first, _, rest = stripped.partition("\n")
    if not first[2:].strip():
        raise JobScriptError(f"the first line {first!r} names no interpreter; write for example '#!{SHELL}'")
    return first.rstrip(), rest


def _family(shebang: str) -> str | None:
    """Return the shell family of a line ``#!...``; None: it is not a shell."""
    words = shebang.removeprefix("#!").split()
    if words and PurePosixPath(words[0]).name == "env":
        # "env -S bash -l", "env VARIABLE=value bash"
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return _SHELLS.get(PurePosixPath(words[0]).name) if words else None


def _preamble(shebang: str, request: BatchJobRequest, filled: SubstitutedText, system: BatchSystem) -> list[str]:
    lines = _aliases(shebang, filled, system)
    if request.threads is not None:
        family = _family(shebang)
        if family is None:
            raise JobScriptError(
                f"threads = {request.threads} sets OMP_NUM_THREADS, which needs a shell "
                f"({', '.join(sorted(_SHELLS))}), not {shebang!r}; call that program from a shell script"
            )
        lines.append(EXPORTS[family].format(name="OMP_NUM_THREADS", value=request.threads))
    return lines


def _aliases(shebang: str, filled: SubstitutedText, system: BatchSystem) -> list[str]:
    """Return assignments for core variables that the text takes apart but that are no variables of the scheduler."""
    for name in sorted(filled.computed):
        if _family(shebang) != "sh":
            raise JobScriptError(
                f"$CLUSTERJOB_{name} is {system.variables[name]} with {system.name}, which only a POSIX shell can "
                f"read, not {shebang!r}; call that program from a shell script"
            )
    return [f"{alias(name)}={system.variables[name]}" for name in sorted(filled.aliases)]
