"""Who answers for an adapter: one for all versions of a name, kept by those that come later."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import insert, update

from registry.catalogue.adapters import columns_of
from registry.catalogue.tables import adapters
from registry.spec import Owner
from tests.registry.catalogue_rows import add, new_adapter

OWNER: TypeAdapter[str] = TypeAdapter(Owner)


def owners(catalogue, **filters):
    return {row.ref: row.owner for row in catalogue.adapters.list(None, limit=100, **filters).rows}


def test_a_later_version_has_the_owner_of_its_name_unless_it_brings_another(catalogue):
    add(catalogue, owner="legal")
    assert add(catalogue, digest="two").owner == "legal"
    assert add(catalogue, digest="three", owner="contracts").owner == "contracts"
    assert set(owners(catalogue).values()) == {"contracts"}
    assert add(catalogue, "acme/lay").owner is None
    assert add(catalogue, "other/law").owner is None


def test_all_versions_change_and_no_etag_does(catalogue):
    first, second = add(catalogue), add(catalogue, digest="two")
    other = add(catalogue, "acme/lay", owner="legal")
    changed = catalogue.adapters.set_owner(second, "legal")
    assert changed.owner == catalogue.adapters.get(first.id).owner == "legal"
    assert changed.etag == second.etag
    assert catalogue.adapters.update_card(first.id, domain="courts", if_match=first.etag).owner == "legal"
    catalogue.adapters.retire(first.id)
    assert catalogue.adapters.set_owner(changed, "court").owner == catalogue.adapters.restore(first.id).owner == "court"
    assert catalogue.adapters.set_owner(changed, None).owner is None
    assert owners(catalogue) == {"acme/law@1": None, "acme/law@2": None, "acme/lay@1": "legal"}
    assert catalogue.adapters.get(other.id) == other


def test_lists_are_filtered_by_the_owner_letter_for_letter(catalogue):
    for name, owner in (("a", "legal"), ("b", "Legal"), ("c", None), ("d", "legal")):
        add(catalogue, f"acme/{name}", owner=owner)
    assert list(owners(catalogue, owner="legal")) == ["acme/d@1", "acme/a@1"]
    assert list(owners(catalogue, owner="legal", name="a")) == ["acme/a@1"]
    assert owners(catalogue, owner="leg") == {}


def test_what_a_server_of_the_release_before_stores_is_healed_by_the_next_version(catalogue):
    """It knows no owner, and inserts none; the version after it finds the one that the name had."""
    row = add(catalogue, owner="legal")
    new = new_adapter(digest="two", weights_blob=row.weights_blob)
    columns = {name: value for name, value in columns_of(new).items() if name != "owner"}
    catalogue.adapters._connection.execute(insert(adapters).values(**columns, version=2))
    catalogue.adapters._connection.execute(update(adapters).where(adapters.c.id == row.id).values(domain="statutes"))
    assert owners(catalogue) == {"acme/law@2": None, "acme/law@1": "legal"}
    assert add(catalogue, digest="three").owner == "legal"
    assert set(owners(catalogue, name="law").values()) == {"legal"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " legal",
        "legal ",
        "le\ngal",
        "le\x00gal",
        "le\x1bgal",
        "le\u202egal",
        "le\u2066gal",
        "le\u200bgal",
        "le\ufeffgal",
        "le\u2028gal",
        "\u00a0",
        "x" * 201,
        "le\x9b31mgal",
        "\ud800",
        "\u3164",
        "le\u2800gal",
    ],
)
def test_what_is_not_shown_as_it_is_names_nobody(text):
    with pytest.raises(ValidationError):
        OWNER.validate_python(text)


@pytest.mark.parametrize("text", ["legal", "legal@acme.example", "Rechtsabteilung Köln", "法務部", "قانون", "x" * 200])
def test_a_team_or_an_address_of_any_script_is_an_owner(text):
    assert OWNER.validate_python(text) == text
