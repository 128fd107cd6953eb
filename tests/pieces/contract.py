"""What every `Workplace` must do, as tests that a class for each kind of place inherits."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from registry.errors import Cancelled, Internal, InvalidParameter, Unavailable
from registry.pieces import Piece, Workplace
from tests.pieces import work

Build = Callable[..., Workplace]


class WorkplaceTests:
    """A fixture `build` makes a place of `at_once`, `retries` and `grace`."""

    def test_every_piece_ends_once_with_its_own_result(self, build: Build) -> None:
        pieces = [Piece(f"square {n}", work.squared, n) for n in range(7)]
        ended = list(build(at_once=2).run(pieces))
        assert {one.name: one.value() for one in ended} == {f"square {n}": n * n for n in range(7)}
        assert len(ended) == 7

    def test_a_piece_is_made_when_it_is_begun(self, build: Build) -> None:
        made: list[int] = []

        def pieces() -> Iterator[Piece[int]]:
            for n in range(3):
                made.append(n)
                yield Piece(f"{n}", work.squared, n)

        ended = build(at_once=1).run(pieces())
        assert [(one.value(), len(made)) for one in ended] == [(0, 1), (1, 2), (4, 3)]

    def test_nothing_to_do_is_done(self, build: Build) -> None:
        assert list(build(at_once=2).run([])) == []

    def test_one_at_a_time_goes_in_order(self, build: Build) -> None:
        pieces = [Piece(f"{n}", work.squared, n) for n in (3, 1, 2)]
        assert [one.name for one in build(at_once=1).run(pieces)] == ["3", "1", "2"]

    def test_bytes_go_there_and_come_back(self, build: Build) -> None:
        data = bytes(range(256)) * 8192
        (ended,) = build(at_once=1).run([Piece("data", work.measured, data)])
        assert ended.value() == (len(data), data[::-1])

    def test_what_pieces_share_is_sent_once_and_each_is_given_its_own(self, build: Build) -> None:
        law, code, before = work.Texts("law", "court"), work.Texts("code"), work.Texts.pickled
        pieces = [
            Piece("none", work.reads, 0), Piece("law", work.reads, 0, law), Piece("court", work.reads, 1, law),
            Piece("law again", work.reads, 0, law), Piece("none again", work.reads, 0),
            Piece("code", work.reads, 0, code),
        ]  # fmt: skip
        found = {one.name: one.value() for one in build(at_once=1).run(pieces)}
        assert found == {
            "none": None, "law": "law", "court": "court", "law again": "law", "none again": None, "code": "code",
        }  # fmt: skip
        assert work.Texts.pickled - before == 2

    def test_what_is_shared_is_there_for_the_process_that_comes_after_one_that_died(
        self, build: Build, tmp_path: Path
    ) -> None:
        law = work.Texts("law")
        pieces = [
            Piece("before", work.reads, 0, law), Piece("unlucky", work.reads_after_deaths, (tmp_path, "x", 1), law)
        ]  # fmt: skip
        ended = {one.name: one for one in build(at_once=1).run(pieces)}
        assert (ended["unlucky"].value(), ended["unlucky"].lost) == ("law", 1)

    def test_so_many_are_at_work_at_the_same_time(self, build: Build, tmp_path: Path) -> None:
        pieces = [Piece(name, work.waits_for_others, (tmp_path, name, 2)) for name in ("one", "other")]
        assert [one.value() for one in build(at_once=2).run(pieces)] == [2, 2]

    def test_what_a_piece_raises_is_its_own_and_is_not_tried_again(self, build: Build, tmp_path: Path) -> None:
        pieces = [Piece("wrong", work.refused, (tmp_path, "wrong")), Piece("right", work.squared, 4)]
        ended = {one.name: one for one in build(at_once=1).run(pieces)}
        assert ended["right"].value() == 16
        with pytest.raises(InvalidParameter, match="wrong cannot be had") as caught:
            ended["wrong"].value()
        assert (caught.value.param, caught.value.problems) == ("name", ("It is not there.",))
        assert not ended["wrong"].gave_up
        assert (tmp_path / "wrong").read_text() == "begun\n"

    def test_what_is_no_error_of_ours_is_named(self, build: Build) -> None:
        (ended,) = build(at_once=1).run([Piece("broken", work.broken, "by zero")])
        with pytest.raises(Internal, match=r"failed on our side \(ZeroDivisionError: by zero\)"):
            ended.value()

    def test_one_that_would_end_its_process_ends_itself_alone(self, build: Build) -> None:
        pieces = [Piece("leaves", work.leaves, 3), Piece("stays", work.squared, 4)]
        ended = {one.name: one for one in build(at_once=1).run(pieces)}
        assert (ended["stays"].value(), ended["leaves"].lost) == (16, 0)
        with pytest.raises(Internal, match=r"failed on our side \(SystemExit: 3\)"):
            ended["leaves"].value()

    def test_a_piece_whose_process_dies_is_run_again(self, build: Build, tmp_path: Path) -> None:
        pieces = [Piece("unlucky", work.dies, (tmp_path, "unlucky", 2)), Piece("lucky", work.squared, 4)]
        ended = {one.name: one for one in build(at_once=2, retries=2).run(pieces)}
        assert (ended["unlucky"].value(), ended["unlucky"].lost) == ("unlucky, try 3", 2)
        assert (ended["lucky"].value(), ended["lucky"].lost) == (16, 0)

    def test_one_whose_process_dies_too_often_is_given_up_and_ends_no_other(self, build: Build, tmp_path: Path) -> None:
        pieces = [Piece("doomed", work.dies, (tmp_path, "doomed", 9)), Piece("lucky", work.squared, 4)]
        ended = {one.name: one for one in build(at_once=1, retries=1).run(pieces)}
        assert ended["lucky"].value() == 16
        assert (ended["doomed"].gave_up, ended["doomed"].lost) == (True, 2)
        with pytest.raises(Unavailable, match="It was tried 2 times"):
            ended["doomed"].value()
        assert len((tmp_path / "doomed").read_text().splitlines()) == 2

    def test_disks_that_are_full_everywhere_are_said_with_a_machines_name(self, build: Build) -> None:
        said = rf"^On {re.escape(platform.node())} the files .* cannot be read or written: No space left on device\.$"
        with pytest.raises(Unavailable, match=said):
            list(build(at_once=1).run([Piece("full", work.full, None)]))

    def test_progress_is_told_by_name(self, build: Build, tmp_path: Path) -> None:
        heard: list[tuple[str, int, int, str]] = []
        pieces = [Piece(name, work.waits, (tmp_path, name)) for name in ("one", "other")]
        with pytest.raises(Cancelled):
            list(
                build(at_once=2).run(
                    pieces,
                    progress=lambda *said: heard.append(said),
                    should_stop=lambda: {said[0] for said in heard} == {"one", "other"},
                )
            )
        assert {(total, message) for _, _, total, message in heard} == {(10, "waiting")}

    def test_those_at_work_stop_in_good_order_and_the_others_are_not_begun(self, build: Build, tmp_path: Path) -> None:
        pieces = [Piece(name, work.waits, (tmp_path, name)) for name in ("one", "other", "third")]
        with pytest.raises(Cancelled):
            list(build(at_once=2).run(pieces, should_stop=(tmp_path / "other").exists))
        assert (tmp_path / "other stopped").exists()
        assert (tmp_path / "one stopped").exists() == (tmp_path / "one").exists()
        assert not (tmp_path / "third").exists()

    def test_a_caller_who_takes_no_more_stops_them_too(self, build: Build, tmp_path: Path) -> None:
        pieces = [Piece("slow", work.waits, (tmp_path, "slow")), Piece("quick", work.squared, 4)]
        with closing(build(at_once=2).run(pieces)) as found:
            assert next(found).name == "quick"
        assert (tmp_path / "slow stopped").exists() == (tmp_path / "slow").exists()

    def test_one_that_does_not_stop_is_killed_after_its_grace(self, build: Build, tmp_path: Path) -> None:
        def begun() -> bool:
            return any(tmp_path.iterdir())

        with pytest.raises(Cancelled):
            list(build(at_once=1, grace=0.3).run([Piece("deaf", work.deaf, (tmp_path, "deaf"))], should_stop=begun))
        (path,) = tmp_path.iterdir()
        assert_gone(int(path.name.split()[1]))

    def test_a_place_is_used_again(self, build: Build) -> None:
        place = build(at_once=1)
        for n in (2, 3):
            assert [one.value() for one in place.run([Piece("square", work.squared, n)])] == [n * n]


def assert_gone(pid: int, *, seconds: float = 30.0) -> None:
    """The process ends within that time; one that nobody waited for yet counts as ended."""
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is there still")
