"""The only SQL: what is stored, in tables, behind one small class per noun."""

from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import AdapterRow, KeyRow

__all__ = ["AdapterRow", "Catalogue", "Database", "KeyRow"]
