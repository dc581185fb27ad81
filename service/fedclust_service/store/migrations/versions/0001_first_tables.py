"""All tables, as the program declares them: there is no released database to upgrade.

With the first release the statements are written out here, as Alembic's autogenerate writes them:
from then on a change of the tables must not change this migration. A test asks for this as soon as
there is a second one.
"""

from alembic import op

from fedclust_service.domain.audit_chain import Head
from fedclust_service.store.tables import audit_chain, metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.bulk_insert(audit_chain, [{"id": 1, **vars(Head())}])


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), checkfirst=False)
