"""`frozen`: value classes with what `attrs.frozen` gives them, cheaper to import and to make an instance of.

attrs builds each class twice and compiles its methods, half a millisecond a class: two thirds of what `import agentloop`
cost. Here one function of each method serves all classes, and only `__init__` is compiled, when it is first needed; it
stores through the slots' own setters, where that of attrs goes through `object.__setattr__` for every field. attrs and
cattrs take these classes for their own: what they ask for (`__attrs_attrs__`) attrs itself makes, the first time that
somebody asks.

What the values of this package use is there: defaults, factories, converters, validators, `__attrs_post_init__`, fields by
keyword only, and subclasses, those of attrs too. A class is made anew with slots, so none of its methods may say `super()`
without arguments.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs

from agentloop._values import frozen_json, frozen_object, valid_text

if TYPE_CHECKING:
    from attrs import field as field
    from attrs import frozen as frozen

else:

    class field:
        """What a class says of one of its fields: `attrs.field`, as far as the values use it."""

        __slots__ = (
            "alias", "annotation", "converter", "default", "eq", "hash", "init", "kw_only", "name", "repr", "validator",
        )  # fmt: skip

        def __init__(
            self, *, default=attrs.NOTHING, factory=None, converter=None, validator=None, eq=True, repr=True, hash=None,
            init=True, kw_only=False,
        ) -> None:  # fmt: skip
            self.default = default if factory is None else attrs.Factory(factory)
            self.converter = converter
            self.validator = validator
            self.eq = eq
            self.repr = repr
            self.hash = hash
            self.init = init
            self.kw_only = kw_only

        def for_attrs(self) -> Any:
            """The same, said to attrs."""
            return attrs.field(
                default=self.default, converter=self.converter, validator=self.validator, eq=self.eq, repr=self.repr,
                hash=self.hash, init=self.init, kw_only=self.kw_only, type=self.annotation, alias=self.alias,
            )  # fmt: skip

    def frozen(cls=None, *, eq=True, kw_only=False):
        """Make a class of values: frozen, with slots; compared, hashed and shown by its fields."""
        if cls is None:
            return lambda cls: frozen(cls, eq=eq, kw_only=kw_only)
        own = _own_fields(cls, kw_only)
        names = [each.name for each in own]
        fields = (*(each for each in getattr(cls, "_fields", ()) if each.name not in names), *own)
        left_out = {*names, "__dict__", "__weakref__"}
        made = type(cls)(
            cls.__name__,
            cls.__bases__,
            {
                **_METHODS,
                **(_COMPARING if eq else {}),
                **{name: value for name, value in cls.__dict__.items() if name not in left_out and value is not None},
                "__slots__": (*names, *(() if hasattr(cls.__base__, "__weakref__") else ("__weakref__",))),
                "__qualname__": cls.__qualname__,
                "__match_args__": tuple([each.name for each in fields if each.init and not each.kw_only]),
                "__attrs_attrs__": _Attributes(cls.__name__, fields),
                "_fields": fields,
                "_compared": _getter([each.name for each in fields if each.eq]),
                "_printed": tuple([each.name for each in fields if each.repr]),
            },
        )
        if fields:
            made.__init__ = _Init(made, fields)
        return made


def _own_fields(cls: type, kw_only: bool) -> list[Any]:
    fields = []
    for name, annotation in cls.__annotations__.items():
        if str(annotation).startswith("ClassVar"):
            continue
        said: Any = cls.__dict__.get(name, attrs.NOTHING)
        if type(said) is not field:
            said = field(default=said)
        said.name, said.alias, said.annotation = name, name.lstrip("_"), annotation
        said.kw_only = said.kw_only or kw_only
        fields.append(said)
    return fields


class _Attributes:
    """`__attrs_attrs__` of a class until attrs asks for it the first time."""

    def __init__(self, name: str, fields: tuple[Any, ...]) -> None:
        self._name = name
        self._fields = fields

    def __get__(self, instance: object, owner: type) -> Any:
        made = attrs.make_class(self._name, {each.name: each.for_attrs() for each in self._fields})
        found = attrs.fields(made)
        holder: Any = next((each for each in owner.__mro__ if each.__dict__.get("__attrs_attrs__") is self), None)
        if holder is None:  # another thread asked as well, and was first
            return owner.__attrs_attrs__  # type: ignore[attr-defined]
        holder.__attrs_attrs__ = found
        return found


class _Init:
    """`__init__` of a class until an instance is made, or somebody looks at it: most classes of a program never have one."""

    def __init__(self, of: type, fields: tuple[Any, ...]) -> None:
        self._of: Any = of
        self._fields = fields

    def __get__(self, instance: object, owner: type) -> Any:
        init: Any = _compiled_init(self._of, self._fields)
        self._of.__init__ = init
        return init.__get__(instance, owner)


def _getter(names: list[str]) -> Any:
    """What is compared of a value: a function that gives it."""
    return staticmethod(operator.attrgetter(*names) if names else lambda value: ())


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    mine = self._compared
    return mine(self) == mine(other)


def _hash(self: Any) -> int:
    return hash((self.__class__, self._compared(self)))


def _repr(self: Any) -> str:
    said = ", ".join([f"{name}={getattr(self, name)!r}" for name in self._printed])
    return f"{type(self).__qualname__.rsplit('>.', 1)[-1]}({said})"


def _get_state(self: Any) -> dict[str, Any]:
    state: Any = object.__getstate__(self)
    own, slots = state if type(state) is tuple else (state, None)  # of a subclass, with slots or without
    return {**(slots or {}), **(own or {})}


def _set_state(self: Any, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(self, name, value)


@attrs.frozen
class _OfAttrs:
    """Where the methods come from by which attrs knows a frozen class."""


_METHODS: dict[str, Any] = {
    "__setattr__": _OfAttrs.__setattr__,
    "__delattr__": _OfAttrs.__delattr__,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
    "__replace__": attrs.evolve,
    "__repr__": _repr,
}
_COMPARING: dict[str, Any] = {"__eq__": _equal, "__hash__": _hash}


_KEPT: dict[Any, str] = {
    bool: "type({0}) is bool",
    frozen_json: "{0} is None",
    frozen_object: "{0} is None",
    valid_text: "type({0}) is str and {0}.isascii()",
}
"""What the most frequent values that a converter gives back as they are can be told by, without calling it."""


def _compiled_init(cls: type, fields: Iterable[Any]) -> Callable[..., None]:
    scope: dict[str, Any] = {"NOTHING": attrs.NOTHING, "type_of": cls}
    by_place: list[str] = []
    by_keyword: list[str] = []
    lines: list[str] = []
    checks: list[str] = []
    for each in fields:
        name, value = each.name, each.alias
        scope[f"set_{name}"] = getattr(cls, name).__set__
        parameter = value
        if isinstance(each.default, attrs.Factory):  # type: ignore[arg-type]
            scope[f"new_{name}"] = each.default.factory
            made = f"new_{name}({'self' if each.default.takes_self else ''})"
            parameter, value = f"{value}=NOTHING", f"{made} if {value} is NOTHING else {value}"
        elif each.default is not attrs.NOTHING:
            scope[f"default_{name}"] = each.default
            parameter = f"{value}=default_{name}"
        if each.init:
            (by_keyword if each.kw_only else by_place).append(parameter)
        elif each.default is not attrs.NOTHING:
            value = f"default_{name}"
        else:  # left to `__attrs_post_init__`
            continue
        if each.converter is not None:
            scope[f"convert_{name}"] = each.converter
            kept = _KEPT.get(each.converter) if value == each.alias else None
            value = (
                f"{value} if {kept.format(value)} else convert_{name}({value})" if kept else f"convert_{name}({value})"
            )
        lines.append(f"    set_{name}(self, {value})")
        if each.validator is not None:
            scope[f"validate_{name}"] = each.validator
            checks.append(f"    validate_{name}(self, type_of.__attrs_attrs__.{name}, self.{name})")
    if hasattr(cls, "__attrs_post_init__"):
        checks.append("    self.__attrs_post_init__()")
    parameters = ", ".join(["self", *by_place, *(["*", *by_keyword] if by_keyword else [])])
    source = f"def __init__({parameters}):\n" + "\n".join([*lines, *checks])
    exec(source, scope)  # the source is made of field names of our own classes only
    init: Callable[..., None] = scope["__init__"]
    init.__module__ = cls.__module__  # what `exec` leaves is None, and `help` of Python 3.13 fails on it
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {each.alias: _taken(each) for each in fields if each.init} | {"return": None}
    scope.update(_meanings(cls, fields, init.__annotations__))
    return init


def _meanings(cls: type, fields: Iterable[Any], annotations: dict[str, Any]) -> dict[str, Any]:
    """What the words of annotations mean where they were written: `typing.get_type_hints` looks for them in the globals."""
    words = set(re.findall(r"\w+", " ".join(map(str, annotations.values()))))
    spaces = [getattr(each.converter, "__globals__", {}) for each in fields]
    spaces += [vars(sys.modules[base.__module__]) for base in reversed(cls.__mro__) if base.__module__ in sys.modules]
    return {word: space[word] for space in spaces for word in words & space.keys()}


def _taken(of: Any) -> Any:
    """The annotation of a parameter: what the field's converter takes, if there is one that says."""
    said = getattr(of.converter, "__annotations__", {})
    return next((said[name] for name in said if name != "return"), of.annotation)
