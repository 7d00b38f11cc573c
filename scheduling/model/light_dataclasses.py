"""Dataclasses for processes that live for a second: they cost almost nothing until they are used.

Each batch job starts a Python. Importing ``dataclasses`` and generating the methods of forty classes, most of them
unused, took a third of the job's CPU time. So modules that a batch job imports use this decorator. It supports only
what they need: classes with slots that inherit no fields. Their ``__init__`` is compiled when many objects have been
made. All functions of ``dataclasses`` accept these classes.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass, field, replace
else:

    def dataclass(*, frozen: bool = False, slots: bool = True, kw_only: bool = False) -> Callable[[type], type]:
        """Like ``dataclasses.dataclass(slots=True)``; ``slots`` is only there for type checkers."""
        return lambda cls: _make(cls, frozen=frozen, kw_only=kw_only)

    def field(*, default_factory: Callable[[], Any]) -> _Factory:
        return _Factory(default_factory)

    def replace(value: Any, **changes: Any) -> Any:
        """Like ``dataclasses.replace``."""
        return type(value)(**{**as_dict(value), **changes})


class _Factory:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def defaults(cls: type) -> Mapping[str, Any]:
    """Return the fields of such a dataclass that can be omitted."""
    return cls.__light_defaults__  # type: ignore[attr-defined, no-any-return]


def as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of an object by name, unlike ``dataclasses.asdict`` without converting or copying values."""
    return {name: getattr(value, name) for name in value.__slots__}


class _Fields:
    """``__dataclass_fields__``, computed on first access."""

    def __init__(self, *, kw_only: bool) -> None:
        self.kw_only = kw_only

    def __get__(self, instance: object, owner: type) -> Mapping[str, Any]:
        import dataclasses

        fields = []
        for name, kind in owner.__annotations__.items():
            given = defaults(owner).get(name, dataclasses.MISSING)
            is_factory = isinstance(given, _Factory)
            made = dataclasses.field(default_factory=given.make) if is_factory else dataclasses.field(default=given)
            fields.append((name, kind, made))
        like = dataclasses.make_dataclass(owner.__name__, fields, kw_only=self.kw_only)
        owner.__dataclass_fields__ = like.__dataclass_fields__  # type: ignore[attr-defined]
        return owner.__dataclass_fields__  # type: ignore[attr-defined, no-any-return]


def _make(cls: type, *, frozen: bool, kw_only: bool) -> type:
    body = {name: each for name, each in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    names = tuple(body["__annotations__"])
    omitted = {name: body.pop(name) for name in names if name in body}
    if shared := [name for name, given in omitted.items() if isinstance(given, (list, dict, set))]:
        raise ValueError(f"all {cls.__name__} would share the default of {', '.join(shared)}: use default_factory")
    values = attrgetter(*names) if len(names) > 1 else lambda self: (getattr(self, names[0]),)

    known = set(names)
    # Compiling costs about as much as making this many objects without it.
    uncompiled = 20

    def first_init(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal uncompiled
        uncompiled -= 1
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        is_plain = len(given) == len(args) + len(kwargs) and not (kw_only and args)
        if uncompiled < 0 or not is_plain or known != {*given, *omitted}:
            made.__init__ = _init(names, omitted, frozen=frozen, kw_only=kw_only, has_more="__post_init__" in body)  # type: ignore[misc]
            made.__init__(self, *args, **kwargs)  # type: ignore[misc]
            return
        for name in names:
            value = given[name] if name in given else omitted[name]
            object.__setattr__(self, name, value.make() if isinstance(value, _Factory) else value)
        if "__post_init__" in body:
            self.__post_init__()

    def eq(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def text(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def state(self: Any) -> Any:
        return values(self)

    def restore(self: Any, state: tuple[Any, ...]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    own = {
        "__qualname__": cls.__qualname__,
        "__slots__": names,
        "__match_args__": () if kw_only else names,
        "__light_defaults__": omitted,
        "__dataclass_fields__": _Fields(kw_only=kw_only),
        "__init__": first_init,
        "__eq__": eq,
        "__hash__": (lambda self: hash(values(self))) if frozen else None,
        "__repr__": text,
        "__getstate__": state,
        "__setstate__": restore,
        **({"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}),
    }
    made = type(cls)(cls.__name__, cls.__bases__, {**own, **body})
    return made


def _init(
    names: tuple[str, ...], omitted: Mapping[str, Any], *, frozen: bool, kw_only: bool, has_more: bool
) -> Callable[..., None]:
    parameters = [f"{name}=defaults[{name!r}]" if name in omitted else name for name in names]
    lines = []
    for name in names:
        is_factory = isinstance(omitted.get(name), _Factory)
        value = f"defaults[{name!r}].make() if {name} is defaults[{name!r}] else {name}" if is_factory else name
        lines.append(f"put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    lines += ["self.__post_init__()"] if has_more else []
    head = ", ".join(["self", *(["*"] if kw_only else []), *parameters])
    space: dict[str, Any] = {"defaults": omitted, "put": object.__setattr__}
    exec(f"def __init__({head}):\n  " + "\n  ".join(lines), space)
    return space["__init__"]  # type: ignore[no-any-return]


def _refuse(self: object, name: str, *_: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot change field {name!r}")
