-- The state of a site: one SQLite database.

CREATE TABLE documents (name TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE cohorts (table_id TEXT PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    coordinator TEXT NOT NULL,
    site TEXT NOT NULL,
    session TEXT NOT NULL,
    definition_sha256 TEXT NOT NULL,
    record BLOB NOT NULL,
    standing BLOB,
    UNIQUE (session, coordinator, site, definition_sha256)
) STRICT;
CREATE TABLE answers (
    session_id INTEGER NOT NULL REFERENCES sessions,
    round INTEGER NOT NULL,
    answer BLOB NOT NULL,
    outcome BLOB,
    PRIMARY KEY (session_id, round)
) STRICT;
CREATE TABLE ledger (
    line INTEGER PRIMARY KEY,
    text TEXT NOT NULL,
    -- Of a damaged line too, so that whoever reads events finds it.
    event TEXT AS (iif(json_valid(text), json_extract(text, '$.event'), 'damaged')),
    session TEXT AS (iif(json_valid(text), json_extract(text, '$.session'), NULL)),
    table_id TEXT AS (iif(json_valid(text), json_extract(text, '$.table'), NULL))
) STRICT;
CREATE INDEX ledger_event ON ledger (event) WHERE event IS NOT NULL;
CREATE INDEX ledger_table ON ledger (table_id) WHERE table_id IS NOT NULL;
