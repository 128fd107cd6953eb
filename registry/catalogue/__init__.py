"""The only SQL: what is stored, in tables, behind one small class per noun."""

from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import AdapterRow, AliasRow, AuditRow, JobRow, KeyRow, Page, SelectorRow

__all__ = [
    "AdapterRow",
    "AliasRow",
    "AuditRow",
    "Catalogue",
    "Database",
    "JobRow",
    "KeyRow",
    "Page",
    "SelectorRow",
]
