"""Run by Alembic: uses the connection and the transaction that `store.migrate` opened."""

from alembic import context

from fedclust_service.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("use `fedclust-service db upgrade`, not alembic's own command")

context.configure(
    connection=connection,
    target_metadata=metadata,
    compare_type=True,
    # SQLite changes a table by copying it.
    render_as_batch=connection.dialect.name == "sqlite",
    # SQLite's data definitions are transactional too, with BEGIN sent by our engine.
    transactional_ddl=True,
)
context.run_migrations()
