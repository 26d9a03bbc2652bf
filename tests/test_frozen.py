"""`frozen`: what a class of values can do, and that attrs takes it for one of its own."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, get_type_hints

import attrs
import pytest

from agentloop._frozen import field, frozen
from agentloop._values import as_tuple
from agentloop.events import AgentEnd
from agentloop.messages import Text, Usage


@frozen
class Point:
    x: int
    y: int = 2
    tags: tuple[str, ...] = field(default=(), converter=as_tuple)
    made: list[int] = field(factory=list, eq=False, repr=False)
    double: int = field(default=attrs.Factory(lambda self: self.x * 2, takes_self=True))


@frozen
class Other:
    x: int


@frozen
class Empty:
    pass


@frozen
class Checked:
    x: int
    y: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "y", self.x + 1)

    def __repr__(self) -> str:
        return "a repr of its own"

    def __hash__(self) -> int:
        return 7


@frozen
class Alike:
    x: int

    def __eq__(self, other: object) -> bool:
        return True


def test_fields_are_set_as_they_are_declared() -> None:
    """By place and by name, with defaults, converters, and factories that see the value; a fresh list for each."""
    point = Point(1)
    assert (point.x, point.y, point.tags, point.made, point.double) == (1, 2, (), [], 2)
    point = Point(1, 5, ["a"], [3], double=9)  # type: ignore[arg-type]
    assert (point.x, point.y, point.tags, point.made, point.double) == (1, 5, ("a",), [3], 9)
    assert Point(1).made is not Point(1).made
    with pytest.raises(TypeError, match=r"Point\.__init__\(\)"):
        Point()  # type: ignore[call-arg]
    assert Checked(1).y == 2
    assert set(Point.__init__.__annotations__) >= {"x", "y", "tags", "made", "double"}


def test_values_cannot_be_changed() -> None:
    """Neither set nor deleted, and nothing is added."""
    for name in ("x", "z"):
        with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
            setattr(Point(1), name, 3)
    assert not hasattr(Point(1), "__dict__")


def test_values_compare_by_class_and_by_what_is_compared() -> None:
    """`eq=False` fields take no part; another class is never equal, and is asked too."""
    assert Point(1, made=[1]) == Point(1, made=[2])
    assert Point(1) != Point(2)
    assert Point(1) != Point(1, 3)
    assert Other(1) != Point(1)
    assert Other(1).__eq__(1) is NotImplemented
    assert Other(1) == Other(1)
    assert Empty() == Empty()
    assert Alike(1) == Alike(2)


def test_values_hash_as_they_compare() -> None:
    """Equal ones have one hash; the class is a part of it; one that a class has itself stays."""
    assert hash(Point(1, made=[1])) == hash(Point(1, made=[2]))
    assert hash(Point(1)) != hash(Point(2))
    assert len({Other(1), Point(1), Empty(), Empty()}) == 3
    assert hash(Other(1)) != hash((1,)) != hash(Point(1))
    assert hash(Checked(1)) == 7
    assert hash(Alike(1)) == hash(Alike(1))


def test_values_say_what_is_to_be_printed() -> None:
    """`repr=False` fields are left out; a repr that a class has itself stays; of a local class, its own name."""

    @frozen
    class Local:
        x: str

    assert repr(Point(1)) == "Point(x=1, y=2, tags=(), double=2)"
    assert repr(Local("a")) == "Local(x='a')"
    assert repr(Checked(1)) == "a repr of its own"
    assert repr(Empty()) == "Empty()"


def _positive(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value < 1:
        raise ValueError(f"{type(instance).__name__}.{attribute.name}: expected a number from 1, got {value!r}")


@frozen(kw_only=True)
class Options:
    kind: ClassVar[str] = "options"
    size: int = field(validator=_positive)
    name: str = "a"
    _hidden: int = 3


_whole: Any = lambda given: int(given)  # noqa: E731 (it says what it gives, and not what it takes)
_whole.__annotations__ = {"return": int}


@frozen
class Taken:
    x: int
    tags: tuple[str, ...] = field(converter=as_tuple, kw_only=True)
    plain: int = field(default=0, converter=_whole)


@frozen
class Longer(Other):
    z: int = 4


@attrs.frozen
class OfAttrs(Point):
    last: str = "z"


@attrs.frozen(slots=False)
class WithoutSlots(Point):
    last: str = "z"


class ByHand(Other):
    """A subclass that nobody made a class of values."""

    def __init__(self, x: int, more: str) -> None:
        super().__init__(x)
        object.__setattr__(self, "more", more)


class OfNoFields(Empty):
    """What is kept beside no field at all."""

    def __init__(self, more: str) -> None:
        object.__setattr__(self, "more", more)


class WithSlots(Other):
    """One with slots of its own."""

    __slots__ = ("more",)
    more: str

    def __init__(self, x: int, more: str) -> None:
        super().__init__(x)
        object.__setattr__(self, "more", more)


def test_fields_by_keyword_only() -> None:
    """They are not taken by place; those behind a default may have none; an underscore is no part of a parameter's name."""
    made = Options(name="b", size=2, hidden=5)
    assert (made.size, made.name, made._hidden, made.kind) == (2, "b", 5, "options")
    with pytest.raises(TypeError, match="positional"):
        Options(2)  # type: ignore[misc, call-arg]
    assert str(inspect.signature(Options)) == "(*, size: 'int', name: 'str' = 'a', hidden: 'int' = 3) -> None"


def test_one_field_by_keyword_among_others_by_place() -> None:
    """It may follow fields with and without defaults; a parameter is annotated with what its converter takes, if it says."""
    made = Taken(1, "3", tags="ab")  # type: ignore[arg-type]
    assert (made.x, made.tags, made.plain) == (1, ("a", "b"), 3)
    assert Taken.__match_args__ == ("x", "plain")
    assert str(inspect.signature(Taken)) == "(x: 'int', plain: 'int' = 0, *, tags: 'Iterable[Any]') -> None"
    assert Checked.__match_args__ == ("x",)


def test_a_class_keeps_its_name() -> None:
    """The name with its place, and the module: pickles find the class by them."""

    @frozen
    class Local:
        x: int

    assert Local.__qualname__ == "test_a_class_keeps_its_name.<locals>.Local"
    assert (Local.__name__, Local.__module__, Local.__doc__) == ("Local", __name__, None)
    assert Local(1).__weakref__ is None  # type: ignore[attr-defined]
    assert (Local.__init__.__qualname__, Local.__init__.__module__) == (f"{Local.__qualname__}.__init__", __name__)
    assert "class Point" in pydoc.plain(
        pydoc.render_doc(sys.modules[__name__])
    )  # Python 3.13 fails on a method without a module


def test_validators_see_the_value_and_name_its_field() -> None:
    """What a validator raises comes out; it runs when all fields are set."""
    with pytest.raises(ValueError, match=r"Options\.size: expected a number from 1, got 0"):
        Options(size=0)


def test_two_threads_ask_for_the_fields_at_once() -> None:
    """Each gets them: who comes second finds what the first has put in the place of the description."""

    @frozen
    class Asked:
        x: int

    before = Asked.__dict__["__attrs_attrs__"]  # both threads have found this
    assert [each.name for each in attrs.fields(Asked)] == ["x"]
    assert before.__get__(None, Asked) is attrs.fields(Asked)


def test_a_class_without_fields_takes_nothing() -> None:
    """An argument too many is refused."""
    with pytest.raises(TypeError):
        Empty(1)  # type: ignore[call-arg]
    assert Empty() is not Empty()


def test_values_match_by_place() -> None:
    """`match` sees the fields that can be given by place."""
    match Point(1, 5):
        case Point(x, y):
            assert (x, y) == (1, 5)
        case _:
            raise AssertionError("a point is a point")
    assert (Point.__match_args__, Options.__match_args__) == (("x", "y", "tags", "made", "double"), ())


@pytest.mark.parametrize(
    "value", [Point(1, 5, ("a",), [3], 9), Options(size=2), Longer(1), OfAttrs(1), WithoutSlots(1, last="a")]
)
def test_values_are_copied_and_pickled(value: Any) -> None:
    """A copy is equal, also in what is not compared; a weak reference lives as long as the value."""
    for again in (
        pickle.loads(pickle.dumps(value)),
        copy.copy(value),
        copy.deepcopy(value),
        attrs.evolve(value),
        value.__replace__(),
    ):
        assert again == value
        assert attrs.asdict(again) == attrs.asdict(value)
        assert again is not value
    assert weakref.ref(value)() is value


@pytest.mark.parametrize("kind", [ByHand, WithSlots])
def test_what_a_subclass_adds_is_pickled_and_copied_too(kind: Any) -> None:
    """Also where it is written by hand, and keeps what it adds in a `__dict__` or in slots of its own."""
    value = kind(1, "a")
    for again in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert (again.x, again.more) == (1, "a")
    bare = OfNoFields("a")
    for again in (pickle.loads(pickle.dumps(bare)), copy.copy(bare), copy.deepcopy(bare)):
        assert again.more == "a"


def test_annotations_can_be_resolved() -> None:
    """Those of `__init__` mean what they mean where they were written, a converter's in its own module."""
    assert get_type_hints(Point.__init__)["made"] == list[int]
    assert get_type_hints(Taken.__init__) == {"x": int, "plain": int, "tags": Iterable[Any], "return": type(None)}
    assert get_type_hints(Text.__init__) == {"text": str, "fidelity": Mapping[str, Any] | None, "return": type(None)}
    assert inspect.signature(AgentEnd, eval_str=True).parameters["usage"].annotation is Usage


def test_attrs_takes_them_for_its_own() -> None:
    """`has`, `fields`, `evolve`, `asdict` and `resolve_types` answer as for a class that attrs has made."""

    @attrs.frozen
    class Same:
        x: int
        y: int = 2
        tags: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
        made: list[int] = attrs.field(factory=list, eq=False, repr=False)
        double: int = attrs.field(default=3)

    assert attrs.has(Point)
    for ours, theirs in zip(attrs.fields(Point), attrs.fields(Same), strict=True):
        for name in ("name", "alias", "type", "converter", "eq", "repr", "init", "kw_only", "validator", "hash"):
            assert getattr(ours, name) == getattr(theirs, name), name
    assert attrs.fields(Point).y.default == 2
    assert attrs.fields(Point) is attrs.fields(Point)
    assert attrs.fields(Longer).z.default == 4
    assert attrs.evolve(Point(1, made=[7]), y=4) == Point(1, 4, made=[])
    assert attrs.asdict(Options(size=2)) == {"size": 2, "name": "a", "_hidden": 3}
    assert attrs.evolve(Options(size=2), hidden=4)._hidden == 4
    attrs.resolve_types(Point)
    assert attrs.fields(Point).tags.type == tuple[str, ...]
    assert get_type_hints(Point)["made"] == list[int]


def test_a_frozen_value_says_that_it_is_frozen() -> None:
    """With the error that attrs has for it, when a field is set or deleted."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Point(1).x = 3  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del Point(1).x


def test_subclasses_have_the_fields_of_both() -> None:
    """Those of the base come first; a subclass that attrs makes has them too, and is frozen."""
    assert (Longer(1, 2).x, Longer(1, 2).z, Longer(1)) == (1, 2, Longer(1, 4))
    assert Longer(1) != Other(1)
    value = OfAttrs(1, last="b")
    assert (value.x, value.double, value.last, [each.name for each in attrs.fields(OfAttrs)][-2:]) == (
        1, 2, "b", ["double", "last"],
    )  # fmt: skip
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.last = "c"  # type: ignore[misc]


def test_an_init_is_made_when_it_is_first_needed() -> None:
    """A class shows the signature of its fields before anything was made of it; what a subclass calls by `super()` is it."""

    @frozen
    class Base:
        first: int
        second: str = "b"

    class Derived(Base):
        def __init__(self) -> None:
            super().__init__(1)

    assert list(inspect.signature(Base).parameters) == ["first", "second"]
    assert Derived() == Derived()
    assert (Derived().first, Derived().second) == (1, "b")
    assert Base.__init__ is Base.__init__  # made once


def test_an_init_that_several_threads_make_at_once_makes_whole_values() -> None:
    """Threads that make the first instances of a class at once all get theirs."""

    @frozen
    class Value:
        number: int

    start = threading.Barrier(8)

    def make(number: int) -> Value:
        start.wait()
        return Value(number)

    with ThreadPoolExecutor(8) as pool:
        assert [value.number for value in pool.map(make, range(8))] == list(range(8))
