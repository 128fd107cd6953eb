"""The needs of a version from the schema that it was made for, and the changes in another schema that break it."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Engine, MetaData, inspect, text

Schema = dict[str, dict[str, Any]]
Rows = dict[str, list[dict[str, Any]]]
GOES_ALONG = ("CASCADE", "SET NULL")
"""What a foreign key does where the row that it refers to is deleted, so that who does not know it may delete."""


def schema_of(engine: Engine) -> Schema:
    """Tables with their columns, keys and constraints."""
    inspector = inspect(engine)
    return {
        table: {
            "columns": {column["name"]: column for column in inspector.get_columns(table)},
            "primary": inspector.get_pk_constraint(table)["constrained_columns"],
            "unique": {tuple(constraint["column_names"]) for constraint in inspector.get_unique_constraints(table)}
            | {tuple(index["column_names"]) for index in inspector.get_indexes(table) if index["unique"]},
            "checks": {check["sqltext"] for check in inspector.get_check_constraints(table)},
            "foreign": {
                (tuple(key["constrained_columns"]), key["referred_table"], tuple(key["referred_columns"])): str(
                    key["options"].get("ondelete", "NO ACTION")
                ).upper()
                for key in inspector.get_foreign_keys(table)
            },
        }
        for table in inspector.get_table_names()
        if not table.endswith("_version") and not table.startswith("adapter_words_index")
    }


def taken_away(older: Schema, newer: Schema) -> list[str]:
    """Sentences on the changes that break a version made for the older schema; none where there is only more."""
    breaks = [f"{table} is gone" for table in older if table not in newer]
    for table in sorted(set(older) & set(newer)):
        breaks += _of_columns(table, older[table]["columns"], newer[table]["columns"])
        breaks += _of_constraints(table, older[table], newer[table])
    for table in sorted(newer):
        breaks += _of_references(table, older, newer)
    return breaks


def _of_columns(table: str, older: dict[str, Any], newer: dict[str, Any]) -> list[str]:
    breaks = []
    for name, old in older.items():
        new = newer.get(name)
        if new is None:
            breaks.append(f"{table}.{name} is gone")
            continue
        if str(new["type"]) != str(old["type"]):
            breaks.append(f"{table}.{name} was {old['type']} and is {new['type']}")
        if old["nullable"] and not new["nullable"]:
            breaks.append(f"{table}.{name} takes no NULL any more")
        if new["default"] != old["default"] and (old["nullable"] or old["default"] is not None):
            breaks.append(f"{table}.{name} had the default {old['default']} and has {new['default']}")
    for name in newer.keys() - older.keys():
        if not newer[name]["nullable"] and newer[name]["default"] is None:
            breaks.append(f"{table}.{name} is new and has to be given")
    return breaks


def _of_constraints(table: str, older: dict[str, Any], newer: dict[str, Any]) -> list[str]:
    breaks = [f"{table} has another primary key"] if older["primary"] != newer["primary"] else []
    breaks += [
        f"{table} has a new unique {', '.join(columns)}" for columns in sorted(newer["unique"] - older["unique"])
    ]
    breaks += [
        f"{table} has no unique {', '.join(columns)} any more" for columns in sorted(older["unique"] - newer["unique"])
    ]
    return breaks + [f"{table} has a new check: {check}" for check in sorted(newer["checks"] - older["checks"])]


def _of_references(table: str, older: Schema, newer: Schema) -> list[str]:
    """Rows of which an older version knows nothing must not keep it from writing, nor from deleting others.

    What it relies on is there still: that the row a row refers to exists, and what happens where that is deleted.
    """
    old, new = older.get(table, {"foreign": {}})["foreign"], newer[table]["foreign"]
    breaks = [f"{table}.{_key(reference)} is no foreign key any more" for reference in old if reference not in new]
    breaks += [
        f"{table}.{_key(reference)} said {rule} on delete and says {new[reference]}"
        for reference, rule in old.items()
        if reference in new and new[reference] != rule
    ]
    added = {reference: rule for reference, rule in new.items() if reference not in old}
    breaks += [f"{table} has a new foreign key to {target}" for _, target, _ in added if table in older]
    blocking = [target for (_, target, _), rule in added.items() if target in older and rule not in GOES_ALONG]
    return breaks + [
        f"rows of {table} keep those of {target} from being deleted" for target in blocking if target != table
    ]


def _key(reference: tuple[tuple[str, ...], str, tuple[str, ...]]) -> str:
    columns, target, theirs = reference
    return f"{', '.join(columns)} to {target}.{', '.join(theirs)}"


def rows_of(engine: Engine, schema: Schema) -> Rows:
    """Every row, with the columns of a schema."""
    rows = {}
    with engine.connect() as connection:
        for table, layout in schema.items():
            columns = ", ".join(f'"{name}"' for name in sorted(layout["columns"]))
            order = ", ".join(f'"{name}"' for name in layout["primary"])
            query = text(f'SELECT {columns} FROM "{table}" ORDER BY {order}')
            rows[table] = [dict(row) for row in connection.execute(query).mappings()]
    return rows


def copy_rows(source: Engine, target: Engine) -> None:
    """Fill a database with what another one holds, as far as its tables and columns have a place for it."""
    schema = schema_of(target)
    metadata = MetaData()
    metadata.reflect(target, only=list(schema))
    there = schema_of(source)
    shared = {
        table: {"columns": layout["columns"].keys() & there[table]["columns"].keys(), "primary": layout["primary"]}
        for table, layout in schema.items()
        if table in there
    }
    rows = rows_of(source, shared)
    with target.begin() as connection:
        for table in metadata.sorted_tables:
            for row in rows.get(table.name, []):
                names = sorted(row)
                columns, values = ", ".join(f'"{name}"' for name in names), ", ".join(f":{name}" for name in names)
                statement = text(f'INSERT INTO "{table.name}" ({columns}) VALUES ({values})')
                connection.execute(statement, {name: _as_sent(value) for name, value in row.items()})


def _as_sent(value: object) -> object:
    """A value from a driver in the form that it takes: PostgreSQL's reads JSON and wants it written."""
    return json.dumps(value) if isinstance(value, (dict, list)) else value
