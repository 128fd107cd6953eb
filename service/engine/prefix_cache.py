"""What of ended sequences is kept for prompts that begin alike: found by its tokens, counted in bytes.

Knows no tensors. Called by the scheduler, under the engine's lock. A text is found by the hashes of its blocks of
tokens and then compared token by token, so that a hash decides where to look and never what is served. It is found only
by requests for the same base model and adapter digest whose key sees the same namespaces: how fast an answer comes, and
the count of reused tokens in it, tell what was asked before. What is kept takes room that no sequence needs, and is the
first to go, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal

from service.engine.kv_budget import KVBudget
from service.engine.request import GenerateRequest
from service.engine.steps import CachedPrefix, PrefixScope, Sequence, SequenceGroup

PrefixSharing = Literal["off", "namespace", "all"]
"""Who may take over the keys and values of a text: nobody, keys that see the same namespaces, every key."""

BLOCK_SIZE = 16
"""Tokens of a block, and the fewest that are taken over."""
MAX_CANDIDATES = 8
"""Texts of one block that are compared, the newest: a look takes no longer because many begin alike."""

Ids = tuple[int, ...]


class PrefixCache:
    """The texts kept within `space`; `keeps` says of a base model's id whether its runner can keep any.

    Nothing is kept where the space has no limit, for then nothing would ever go.
    """

    def __init__(
        self, space: KVBudget, sharing: PrefixSharing = "off", keeps: Callable[[str], bool] = lambda _base_id: True
    ) -> None:
        self._space = space
        self._sharing: PrefixSharing = sharing if space.limit is not None else "off"
        self._keeps = keeps
        self._texts: OrderedDict[CachedPrefix, None] = OrderedDict()  # least recently used first
        self._blocks: dict[int, dict[CachedPrefix, None]] = {}
        self._pinned: set[CachedPrefix] = set()
        self._fresh: list[CachedPrefix] = []
        self._gone: list[CachedPrefix] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    # --- taking over ----------------------------------------------------------------------------

    def find(self, sequence: Sequence) -> tuple[CachedPrefix | None, int]:
        """The text that most of a sequence's first tokens can be taken over from, and how many; counts as its use.

        At least one token is left to compute. A prompt whose own tokens are to be scored takes over nothing.
        """
        group = sequence.group
        scope = self._scope(group)
        if scope is None or not isinstance(group.request, GenerateRequest) or group.request.params.prompt_logprobs:
            return None, 0
        text, shared = self._longest(scope, tuple(sequence.ids[:-1]))
        if text is not None:
            self._texts.move_to_end(text)
        return text, shared

    def pin(self, text: CachedPrefix) -> None:
        """A text that the step in the making takes over stays until the next is made."""
        self._pinned.add(text)

    def pin_only(self, texts: Iterable[object]) -> None:
        """Of all texts, only these stay for the step in the making; nothing for a new one."""
        self._pinned.intersection_update(texts)

    # --- coming and going -----------------------------------------------------------------------

    def keep(self, sequence: Sequence) -> None:
        """Keep what a sequence leaves that has just given up its row; of several choices only the first's.

        What is kept already is not kept twice: of two texts of which one begins with the other, the longer stays.
        """
        scope = self._scope(sequence.group)
        if scope is None or sequence.index > 0 or sequence.done < BLOCK_SIZE or not self._keeps(scope[0]):
            return
        ids = tuple(sequence.ids[: sequence.done])
        other, shared = self._longest(scope, ids)
        if other is not None and shared == len(ids):
            self._texts.move_to_end(other)
            return
        if other is not None and shared == len(other.ids):
            self.drop(other)
        text = CachedPrefix(scope, ids, sequence.before, sequence)
        if self._space.keep(text, scope[0], text.positions):
            self._texts[text] = None
            self.bytes += self._space.held(text)
            for block in blocks(scope, ids):
                self._blocks.setdefault(block, {})[text] = None
            self._fresh.append(text)

    def drop(self, text: CachedPrefix) -> None:
        """Let go of a text, if it is still kept."""
        if text not in self._texts:
            return
        del self._texts[text]
        self.bytes -= self._space.held(text)
        self._space.release(text)
        for block in blocks(text.scope, text.ids):
            found = self._blocks[block]
            del found[text]
            if not found:
                del self._blocks[block]
        if text in self._fresh:
            self._fresh.remove(text)
        else:
            self._gone.append(text)

    def forget(self, base_id: str) -> None:
        """Let go of the texts of a base model that is dropped."""
        for text in [one for one in self._texts if one.scope[0] == base_id]:
            self.drop(text)

    def make_room(self, missing: int) -> bool:
        """Let go of texts of so many bytes, least recently used first; False, and none goes, where there are fewer."""
        going: list[CachedPrefix] = []
        for text in self._texts:
            if missing <= 0:
                break
            if text not in self._pinned:
                going.append(text)
                missing -= self._space.held(text)
        if missing > 0:
            return False
        for text in going:
            self.drop(text)
        return True

    def changes(self) -> tuple[list[CachedPrefix], list[CachedPrefix]]:
        """The texts that came since this was asked last, to be copied out of their sequences' rows, and that went."""
        fresh, gone = self._fresh, self._gone
        self._fresh, self._gone = [], []
        return fresh, gone

    # --- looking --------------------------------------------------------------------------------

    def _scope(self, group: SequenceGroup) -> PrefixScope | None:
        """Among which texts a request looks; None where it neither takes over nor leaves any."""
        request = group.request
        if self._sharing == "off" or not isinstance(request, GenerateRequest) or request.namespace is None:
            return None
        return (*group.key, "" if self._sharing == "all" else request.namespace)

    def _longest(self, scope: PrefixScope, ids: Ids) -> tuple[CachedPrefix | None, int]:
        """The text of a scope that begins with the most of `ids`, a block at the least."""
        for block in reversed(list(blocks(scope, ids))):
            best: tuple[CachedPrefix | None, int] = None, 0
            for text in islice(reversed(self._blocks.get(block, {})), MAX_CANDIDATES):
                shared = alike(text.ids, ids) if text.scope == scope else 0
                if shared >= max(BLOCK_SIZE, best[1] + 1):
                    best = text, shared
            if best[0] is not None:
                return best
        return None, 0


def blocks(scope: PrefixScope, ids: Ids) -> Iterator[int]:
    """A hash for each full block of `ids`, of all tokens up to its end."""
    known = hash(scope)
    for start in range(0, len(ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        known = hash((known, ids[start : start + BLOCK_SIZE]))
        yield known


def alike(one: Ids, other: Ids) -> int:
    """With how many tokens both begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
