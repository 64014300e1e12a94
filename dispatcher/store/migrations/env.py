"""Alembic's entry point: runs revisions on the connection, and in the transaction, that migrate.py gives it."""

from alembic import context
from sqlmodel import SQLModel

import signals.store  # noqa: F401  (both register their tables)

context.configure(connection=context.config.attributes["connection"], target_metadata=SQLModel.metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
