"""What a place where pieces of work run promises, whether its processes are here or on other machines.

Called by sweeps of trainings, matrices and the experiments of `benchmarks`, which know pieces and results and nothing
of processes. A piece is a function of a module, and a value with everything in it that the result depends on: data or
their digests, seeds, the number of threads; what it shares with others counts as part of that. So it may be run again,
elsewhere, and gives the same bits on processors of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from registry.errors import Internal, SoupError, Unavailable, as_dict
from registry.progress import Progress

RETRIES = 2
"""How often a piece is run again whose process was lost, by default."""
GRACE_SECONDS = 120.0
"""How long pieces may take to stop in good order, a training to save what it has."""
TICK_SECONDS = 0.25
"""How often a place asks whether to stop, and a piece says how far it is."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Watch:
    """What a piece is given beside its value: whom to tell how far it is, whom to ask whether to stop, and what it
    shares."""

    progress: Progress
    should_stop: Callable[[], bool]
    shared: Any = None


Work = Callable[[Any, Watch], R]
"""(value, watch) -> result: a function that its module has by name. Value and result can be pickled."""


@dataclass(frozen=True)
class Piece(Generic[R_co]):
    """A piece of work; `name` is its own among those that are run together.

    `shared` is what others are given as well, as one and the same object: it is sent to a process once for those that
    come one after another, and to a cluster once a run. A piece only reads it.
    """

    name: str
    work: Callable[[Any, Watch], R_co]
    given: Any
    shared: Any = None


@dataclass(frozen=True)
class Ended(Generic[R_co]):
    """What became of a piece: its result, or the problem it raised.

    `lost` counts the processes that ended under it without a word; with a problem and `gave_up` that was once too
    often, and there is no telling whether the piece itself is at fault.
    """

    name: str
    result: R_co | None = None
    problem: SoupError | None = None
    lost: int = 0
    gave_up: bool = False

    def value(self) -> R_co:
        """The result; raises the problem where there is one."""
        if self.problem is not None:
            raise self.problem
        return self.result  # type: ignore[return-value]  # None where that is the result


class MachineProblem(Exception):
    """Raised by a piece for a `problem` of the machine that it runs on, of which no other one need have it."""

    def __init__(self, problem: SoupError) -> None:
        super().__init__(problem.message)
        self.problem = problem


PieceProgress = Callable[[str, int, int, str], None]
"""(name, done, total, message): where each piece is."""


def nobody(_name: str, _done: int, _total: int, _message: str) -> None:
    """The progress of pieces that nobody watches."""


class Workplace(Protocol):
    """Runs pieces, so many at once."""

    @property
    def shares_files(self) -> bool:
        """Whether its pieces see the files of this machine; elsewhere values carry what is needed of them."""

    def threads(self, *, of: int) -> int:
        """How many threads a piece should compute on, where this process uses `of`: values say so to their pieces."""

    def run(
        self,
        pieces: Iterable[Piece[R]],
        *,
        progress: PieceProgress = nobody,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Ended[R]]:
        """What became of each piece, as they end; they are begun in their order, and taken when they are begun.

        One that raises is not run again: it would raise again. One whose process ended without a word is, up to the
        place's number of retries. Neither ends the others. Where `should_stop` says so, those at work are asked to
        stop, and Cancelled is raised when they have; they are asked too where the caller takes no more results. Raises
        Unavailable where nothing can be run at all, and the MachineProblem's where every machine has one.
        """


def answer_of(work: Work[Any], given: Any, watch: Watch) -> tuple[str, Any]:
    """("result", it) of a piece that is run in this process, or ("problem" or "machine", an error as JSON); for
    places alone.

    What is no SoupError becomes an Internal that names it.
    """
    try:
        return "result", work(given, watch)
    except MachineProblem as error:
        return "machine", as_dict(error.problem)
    except SoupError as problem:
        return "problem", as_dict(problem)
    except BaseException as error:  # whoever waits must hear of it, whatever it is, and though it would end a process
        return "problem", as_dict(Internal(f"It failed on our side ({type(error).__name__}: {error})."))


def given_up(name: str, why: str, lost: int) -> Ended[Any]:
    """A piece whose process was lost once too often, and how it was last."""
    times = "" if lost == 1 else f" It was tried {lost} times."
    return Ended(name, problem=Unavailable(why + times), lost=lost, gave_up=True)
