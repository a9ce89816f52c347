"""What alembic runs to migrate: on the connection, and in the transaction, of whoever opens.

Process: any that opens the history.  Blocks: on the database.
"""

from alembic import context

from trainflow.service.history.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
