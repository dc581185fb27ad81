"""The coordinator's database: the only SQL of the project.

`Store.open` opens a store on SQLite or PostgreSQL. Every write goes through `Store.run_tx`, every
read through `Store.read`. Both pass a `Tx` to a function; its repositories take and return the
dataclasses of `fedclust_service.domain`. Tables, engines and migrations are private to this folder.
"""

from fedclust_service.store._sql import Ending
from fedclust_service.store.errors import (
    DatabaseDamaged,
    DataDamaged,
    SchemaMissing,
    SchemaProblem,
    StoreBusy,
    StoreError,
    StoreFault,
    StoreLocked,
    StoreUnavailable,
    Unwritable,
    UrlRefused,
    is_defect,
)
from fedclust_service.store.listen import Listener
from fedclust_service.store.results import StoredResult
from fedclust_service.store.rounds import DueRound, RoundView, SiteView, WaitingRound
from fedclust_service.store.store import Store, Tx
