"""Calls that are described once as methods of every client: of one that waits, and of one that is awaited.

`Call`, `Rows` and `Chunks` are to be attributes of a class. When a client is made of that (`Sync` or `Async`), each
becomes a method of it with the description's own parameters and docstring; types are seen by a checker from the
descriptors.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from service.client.steps import Listing, Steps, Streamed

if TYPE_CHECKING:
    from service.client.async_connection import AsyncConnection, AsyncStream
    from service.client.connection import Connection, Stream

P = ParamSpec("P")
T = TypeVar("T")


class Sync:
    """What a client that waits for its answers is made of."""

    _http: Connection

    def __init_subclass__(cls) -> None:
        for name, described in _described(cls):
            setattr(cls, name, described.waiting())


class Async:
    """What a client whose answers are awaited is made of."""

    _http: AsyncConnection

    def __init_subclass__(cls) -> None:
        for name, described in _described(cls):
            setattr(cls, name, described.awaited())


class _Described(ABC):
    """A call, by the function that describes it."""

    def __init__(self, describe: Callable[..., Any]) -> None:
        self._describe = describe

    @abstractmethod
    def waiting(self) -> Callable[..., Any]:
        """As a method of a client that waits."""

    @abstractmethod
    def awaited(self) -> Callable[..., Any]:
        """As a method of a client whose answers are awaited."""


class Call(_Described, Generic[P, T]):
    """A call with one answer."""

    def __init__(self, describe: Callable[P, Steps[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, client: Sync, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Async, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: object, owner: type) -> Any:
        return self

    def waiting(self) -> Callable[..., Any]:
        """As a method of a client that waits."""
        return _method(
            self._describe, lambda client, *given, **named: client._http.run(self._describe(*given, **named))
        )

    def awaited(self) -> Callable[..., Any]:
        """As a method of a client whose answers are awaited."""

        async def call(client: Async, *given: Any, **named: Any) -> T:
            answer: T = await client._http.run(self._describe(*given, **named))
            return answer

        return _method(self._describe, call)


class Rows(_Described, Generic[P, T]):
    """A list that is gone through a page at a time."""

    def __init__(self, describe: Callable[P, Listing[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, client: Sync, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Async, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: object, owner: type) -> Any:
        return self

    def waiting(self) -> Callable[..., Any]:
        """As a method of a client that waits."""
        return _method(
            self._describe, lambda client, *given, **named: client._http.rows(self._describe(*given, **named))
        )

    def awaited(self) -> Callable[..., Any]:
        """As a method of a client whose answers are awaited: the rows are."""
        return self.waiting()


class Chunks(_Described, Generic[P, T]):
    """An answer that comes in pieces."""

    def __init__(self, describe: Callable[P, Streamed[T]]) -> None:
        super().__init__(describe)

    @overload
    def __get__(self, client: Sync, owner: type) -> Callable[P, Stream[T]]: ...
    @overload
    def __get__(self, client: Async, owner: type) -> Callable[P, AsyncStream[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: object, owner: type) -> Any:
        return self

    def waiting(self) -> Callable[..., Any]:
        """As a method of a client that waits."""
        return _method(
            self._describe, lambda client, *given, **named: client._http.events(self._describe(*given, **named))
        )

    def awaited(self) -> Callable[..., Any]:
        """As a method of a client whose answers are awaited: the pieces are."""
        return self.waiting()


def _method(describe: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with the name, the docstring and the parameters of a description, after `self`."""
    found = wraps(describe)(call)
    client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = inspect.signature(describe).parameters.values()
    found.__signature__ = inspect.Signature([client, *own])  # type: ignore[attr-defined]
    return found


def _described(cls: type) -> list[tuple[str, _Described]]:
    """The calls that a class and those before it in its order describe, but for what it defines otherwise."""
    names = [name for base in cls.__mro__ for name in vars(base)]
    found = ((name, inspect.getattr_static(cls, name)) for name in dict.fromkeys(names))
    return [(name, one) for name, one in found if isinstance(one, _Described)]
