"""What refs mean, against a plain model: whatever is pushed, retired and aliased, by whoever asks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from registry.errors import NotFound, Retired
from registry.names import DigestRef, NameRef
from tests.registry.catalogue_rows import add, undone

NAMES = ("acme/a", "acme/b", "other/a")
names = st.sampled_from(NAMES)


class RefsMean(RuleBasedStateMachine):
    """The model: per name its rows in order, which of them are retired, and its aliases."""

    def __init__(self) -> None:
        super().__init__()
        self.context = undone(self.database)
        self.catalogue = self.context.__enter__()
        self.rows = {name: [] for name in NAMES}
        self.retired: set[int] = set()
        self.aliases: dict[tuple[str, str], int] = {}

    def teardown(self) -> None:
        try:
            self.refs_mean_what_the_model_says()
        finally:
            self.context.__exit__(None, None, None)

    @rule(name=names, digest=st.sampled_from("xyz"))
    def push(self, name: str, digest: str) -> None:
        row = add(self.catalogue, name, digest=digest)
        assert row.version == len(self.rows[name]) + 1
        self.rows[name].append(row)

    @precondition(lambda self: any(self.rows.values()))
    @rule(data=st.data())
    def retire(self, data) -> None:
        row = data.draw(st.sampled_from([row for rows in self.rows.values() for row in rows]))
        self.catalogue.adapters.retire(row.id)
        self.retired.add(row.id)

    @rule(name=names, alias=st.sampled_from(["stable", "beta"]), version=st.integers(1, 4))
    def alias(self, name: str, alias: str, version: int) -> None:
        self.catalogue.aliases.put(*name.split("/"), alias, version)
        self.aliases[name, alias] = version

    @precondition(lambda self: self.aliases)
    @rule(data=st.data())
    def forget(self, data) -> None:
        name, alias = data.draw(st.sampled_from(sorted(self.aliases)))
        self.catalogue.aliases.delete(*name.split("/"), alias)
        del self.aliases[name, alias]

    def expected(self, candidates: list) -> object:
        live = [row for row in candidates if row.id not in self.retired]
        if live:
            return max(live, key=lambda row: row.id).id
        return Retired if candidates else NotFound

    def found(self, scope, ref) -> object:
        try:
            return self.catalogue.adapters.resolve(scope, ref).id
        except (Retired, NotFound) as error:
            return type(error)

    def refs_mean_what_the_model_says(self) -> None:
        for scope in (None, (), ("acme",)):
            seen = {name: rows for name, rows in self.rows.items() if scope is None or name.split("/")[0] in scope}
            for name in NAMES:
                rows = seen.get(name, [])
                namespace, _, bare = name.partition("/")
                assert self.found(scope, NameRef(namespace, bare)) == self.expected(rows)
                for version in (1, 2, 5):
                    ref = NameRef(namespace, bare, version=version)
                    assert self.found(scope, ref) == self.expected(rows[version - 1 : version])
                for alias in ("stable", "beta"):
                    version = self.aliases.get((name, alias), 99)
                    ref = NameRef(namespace, bare, alias=alias)
                    assert self.found(scope, ref) == self.expected(rows[version - 1 : version])
            everything = [row for rows in self.rows.values() for row in rows]
            for digest in {row.digest for row in everything}:
                same = [row for rows in seen.values() for row in rows if row.digest == digest]
                assert self.found(scope, DigestRef(digest)) == self.expected(same)


def test_refs_mean_what_the_model_says(database):
    RefsMean.database = database
    RefsMean.TestCase.settings = settings(max_examples=8, stateful_step_count=20)
    RefsMean.TestCase().runTest()
