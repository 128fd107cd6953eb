"""The database: tables, and one small repository class per noun. Besides, only migrations import SQLAlchemy."""

from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import AdapterRow, KeyRow

__all__ = ["AdapterRow", "Catalogue", "Database", "KeyRow"]
