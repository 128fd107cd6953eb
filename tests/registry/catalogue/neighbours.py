"""What of a schema a version that was made for it needs, and what another schema has taken away of that."""

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
    found = inspect(engine)
    return {
        table: {
            "columns": {column["name"]: column for column in found.get_columns(table)},
            "primary": found.get_pk_constraint(table)["constrained_columns"],
            "unique": {tuple(one["column_names"]) for one in found.get_unique_constraints(table)}
            | {tuple(one["column_names"]) for one in found.get_indexes(table) if one["unique"]},
            "checks": {one["sqltext"] for one in found.get_check_constraints(table)},
            "foreign": {
                (tuple(one["constrained_columns"]), one["referred_table"], tuple(one["referred_columns"])): str(
                    one["options"].get("ondelete", "NO ACTION")
                ).upper()
                for one in found.get_foreign_keys(table)
            },
        }
        for table in found.get_table_names()
        if not table.endswith("_version") and not table.startswith("adapter_words_index")
    }


def taken_away(before: Schema, after: Schema) -> list[str]:
    """What breaks a version made for the schema before, in sentences; none where there is only more."""
    found = [f"{table} is gone" for table in before if table not in after]
    for table in sorted(set(before) & set(after)):
        found += _of_columns(table, before[table]["columns"], after[table]["columns"])
        found += _of_constraints(table, before[table], after[table])
    for table in sorted(after):
        found += _of_references(table, before, after)
    return found


def _of_columns(table: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    found = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            found.append(f"{table}.{name} is gone")
            continue
        if str(new["type"]) != str(old["type"]):
            found.append(f"{table}.{name} was {old['type']} and is {new['type']}")
        if old["nullable"] and not new["nullable"]:
            found.append(f"{table}.{name} takes no NULL any more")
        if new["default"] != old["default"] and (old["nullable"] or old["default"] is not None):
            found.append(f"{table}.{name} had the default {old['default']} and has {new['default']}")
    for name in after.keys() - before.keys():
        if not after[name]["nullable"] and after[name]["default"] is None:
            found.append(f"{table}.{name} is new and has to be given")
    return found


def _of_constraints(table: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    found = [f"{table} has another primary key"] if before["primary"] != after["primary"] else []
    found += [f"{table} has a new unique {', '.join(one)}" for one in sorted(after["unique"] - before["unique"])]
    found += [f"{table} has no unique {', '.join(one)} any more" for one in sorted(before["unique"] - after["unique"])]
    return found + [f"{table} has a new check: {one}" for one in sorted(after["checks"] - before["checks"])]


def _of_references(table: str, before: Schema, after: Schema) -> list[str]:
    """Rows of which an older version knows nothing must not keep it from writing, nor from deleting others.

    What it relies on is there still: that the row a row refers to exists, and what happens where that is deleted.
    """
    old, new = before.get(table, {"foreign": {}})["foreign"], after[table]["foreign"]
    found = [f"{table}.{_key(one)} is no foreign key any more" for one in old if one not in new]
    found += [
        f"{table}.{_key(one)} said {rule} on delete and says {new[one]}"
        for one, rule in old.items()
        if one in new and new[one] != rule
    ]
    added = {one: rule for one, rule in new.items() if one not in old}
    found += [f"{table} has a new foreign key to {other}" for _, other, _ in added if table in before]
    kept = [other for (_, other, _), rule in added.items() if other in before and rule not in GOES_ALONG]
    return found + [f"rows of {table} keep those of {other} from being deleted" for other in kept if other != table]


def _key(reference: tuple[tuple[str, ...], str, tuple[str, ...]]) -> str:
    columns, other, theirs = reference
    return f"{', '.join(columns)} to {other}.{', '.join(theirs)}"


def rows_of(engine: Engine, schema: Schema) -> Rows:
    """Every row, with the columns of a schema."""
    found = {}
    with engine.connect() as connection:
        for table, parts in schema.items():
            columns = ", ".join(f'"{name}"' for name in sorted(parts["columns"]))
            order = ", ".join(f'"{name}"' for name in parts["primary"])
            query = text(f'SELECT {columns} FROM "{table}" ORDER BY {order}')
            found[table] = [dict(row) for row in connection.execute(query).mappings()]
    return found


def copy_rows(source: Engine, target: Engine) -> None:
    """Fill a database with what another one holds, as far as its tables and columns have a place for it."""
    schema = schema_of(target)
    found = MetaData()
    found.reflect(target, only=list(schema))
    there = schema_of(source)
    shared = {
        table: {"columns": parts["columns"].keys() & there[table]["columns"].keys(), "primary": parts["primary"]}
        for table, parts in schema.items()
        if table in there
    }
    rows = rows_of(source, shared)
    with target.begin() as connection:
        for table in found.sorted_tables:
            for row in rows.get(table.name, []):
                names = sorted(row)
                columns, values = ", ".join(f'"{one}"' for one in names), ", ".join(f":{one}" for one in names)
                statement = text(f'INSERT INTO "{table.name}" ({columns}) VALUES ({values})')
                connection.execute(statement, {name: _as_sent(value) for name, value in row.items()})


def _as_sent(value: object) -> object:
    """What a driver gave for a value, as it takes it: PostgreSQL's reads JSON and wants it written."""
    return json.dumps(value) if isinstance(value, (dict, list)) else value
