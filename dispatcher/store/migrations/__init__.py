"""The history of the tables; Alembic runs it through dispatcher.store.migrate."""
