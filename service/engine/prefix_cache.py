"""Prefix cache: tokens of ended sequences whose keys and values later prompts with the same beginning copy.

Knows no tensors. Called by the scheduler, under the engine's lock. A prefix is looked up by the hashes of its token
blocks and then compared token by token, so that a hash collision cannot serve a wrong one. Only requests for the same
base model and adapter digest, whose key sees the same namespaces, can find it. Otherwise the latency of an answer, and
its count of reused tokens, would reveal other keys' requests. Cached prefixes use memory that no sequence needs, and
are evicted first, least recently used ones before others.
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
"""Keys that share cached prefixes: none, those that see the same namespaces, all."""

BLOCK_SIZE = 16
"""Tokens of a block, and the fewest that are reused."""
MAX_CANDIDATES = 8
"""Prefixes with an equal block that are compared, the newest first: bounds the time of a lookup."""

Ids = tuple[int, ...]


class PrefixCache:
    """The prefixes cached within `budget`; `can_cache` says whether the runner of a base model id supports it.

    Nothing is cached in a budget without a limit, for then nothing would ever be evicted.
    """

    def __init__(
        self,
        budget: KVBudget,
        sharing: PrefixSharing = "off",
        can_cache: Callable[[str], bool] = lambda _base_id: True,
    ) -> None:
        self.budget = budget
        self._sharing: PrefixSharing = sharing if budget.limit is not None else "off"
        self._can_cache = can_cache
        self._prefixes: OrderedDict[CachedPrefix, None] = OrderedDict()  # least recently used first
        self._prefixes_by_block: dict[int, dict[CachedPrefix, None]] = {}
        self._pinned: set[CachedPrefix] = set()
        self._added: list[CachedPrefix] = []
        self._evicted: list[CachedPrefix] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._prefixes)

    # --- reuse ----------------------------------------------------------------------------------

    def find(self, sequence: Sequence) -> tuple[CachedPrefix | None, int]:
        """The cached prefix that shares most tokens with a sequence, and how many; marks it as used.

        At least one token remains to compute. A prompt that is to be scored reuses nothing.
        """
        group = sequence.group
        scope = self._scope(group)
        if scope is None or not isinstance(group.request, GenerateRequest) or group.request.params.prompt_logprobs:
            return None, 0
        prefix, shared = self._longest_match(scope, tuple(sequence.ids[:-1]))
        if prefix is not None:
            self._prefixes.move_to_end(prefix)
        return prefix, shared

    def pin(self, prefix: CachedPrefix) -> None:
        """Keep a prefix that the step being scheduled copies until the next step is scheduled."""
        self._pinned.add(prefix)

    def unpin_except(self, prefixes: Iterable[object]) -> None:
        """Unpin all prefixes but these."""
        self._pinned.intersection_update(prefixes)

    # --- adding and evicting --------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Cache the tokens of a sequence that has just released its row; of several choices only the first.

        Of two prefixes of which one begins with the other, only the longer is cached.
        """
        scope = self._scope(sequence.group)
        if scope is None or sequence.index > 0 or sequence.computed < BLOCK_SIZE or not self._can_cache(scope[0]):
            return
        ids = tuple(sequence.ids[: sequence.computed])
        match, shared = self._longest_match(scope, ids)
        if match is not None and shared == len(ids):
            self._prefixes.move_to_end(match)
            return
        if match is not None and shared == len(match.ids):
            self.evict(match)
        prefix = CachedPrefix(scope, ids, sequence.virtual_tokens, sequence)
        if self.budget.reserve_exact(prefix, scope[0], prefix.positions):
            self._prefixes[prefix] = None
            self.bytes += self.budget.reserved(prefix)
            for block in block_hashes(scope, ids):
                self._prefixes_by_block.setdefault(block, {})[prefix] = None
            self._added.append(prefix)

    def evict(self, prefix: CachedPrefix) -> None:
        """Remove a prefix, if it is still cached."""
        if prefix not in self._prefixes:
            return
        del self._prefixes[prefix]
        self.bytes -= self.budget.reserved(prefix)
        self.budget.release(prefix)
        for block in block_hashes(prefix.scope, prefix.ids):
            prefixes = self._prefixes_by_block[block]
            del prefixes[prefix]
            if not prefixes:
                del self._prefixes_by_block[block]
        if prefix in self._added:
            self._added.remove(prefix)
        else:
            self._evicted.append(prefix)

    def evict_base(self, base_id: str) -> None:
        """Remove the prefixes of a base model that is evicted."""
        for prefix in [prefix for prefix in self._prefixes if prefix.scope[0] == base_id]:
            self.evict(prefix)

    def evict_bytes(self, shortfall: int) -> bool:
        """Evict prefixes of `shortfall` bytes, least recently used first; evict none and return False if too few."""
        evicted: list[CachedPrefix] = []
        for prefix in self._prefixes:
            if shortfall <= 0:
                break
            if prefix not in self._pinned:
                evicted.append(prefix)
                shortfall -= self.budget.reserved(prefix)
        if shortfall > 0:
            return False
        for prefix in evicted:
            self.evict(prefix)
        return True

    def reserve_row(self, sequence: Sequence) -> bool:
        """Reserve memory for a sequence's tokens, evicting prefixes if necessary; return False if there is none."""
        base_id, positions = sequence.group.base_id, sequence.virtual_tokens + len(sequence.ids)
        shortfall = self.budget.shortfall(sequence, base_id, positions)
        is_reserved = self.evict_bytes(shortfall) and self.budget.reserve(sequence, base_id, positions)
        sequence.has_row = sequence.has_row or is_reserved
        return is_reserved

    def take_changes(self) -> tuple[list[CachedPrefix], list[CachedPrefix]]:
        """The prefixes added since the last call, to be copied from their sequences' rows, and the evicted ones."""
        added, evicted = self._added, self._evicted
        self._added, self._evicted = [], []
        return added, evicted

    # --- lookup ---------------------------------------------------------------------------------

    def _scope(self, group: SequenceGroup) -> PrefixScope | None:
        """The scope of a request's prefixes; None if it neither reuses nor adds any."""
        request = group.request
        if self._sharing == "off" or not isinstance(request, GenerateRequest) or request.namespace is None:
            return None
        return group.base_id, group.digest, "" if self._sharing == "all" else request.namespace

    def _longest_match(self, scope: PrefixScope, ids: Ids) -> tuple[CachedPrefix | None, int]:
        """The prefix of a scope with the most leading tokens in common with `ids`, at least a block, and how many."""
        for block in reversed(list(block_hashes(scope, ids))):
            best: tuple[CachedPrefix | None, int] = None, 0
            for prefix in islice(reversed(self._prefixes_by_block.get(block, {})), MAX_CANDIDATES):
                shared = common_length(prefix.ids, ids) if prefix.scope == scope else 0
                if shared >= max(BLOCK_SIZE, best[1] + 1):
                    best = prefix, shared
            if best[0] is not None:
                return best
        return None, 0


def block_hashes(scope: PrefixScope, ids: Ids) -> Iterator[int]:
    """A hash for each full block of `ids`, over all tokens up to its end."""
    digest = hash(scope)
    for start in range(0, len(ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        digest = hash((digest, ids[start : start + BLOCK_SIZE]))
        yield digest


def common_length(first: Ids, second: Ids) -> int:
    """The number of leading tokens in common, by bisection."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
