-- States of the log's readers, so that none of them folds it from the begin: a cache, which may be emptied at any time.
-- `data` is zlib-compressed. Found by `cursor`; one of no use any more, its version gone, is never read.
CREATE TABLE snapshots (
    row INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL,
    cursor INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX snapshots_by_cursor ON snapshots (session, kind, version, cursor);

-- How a dialect shows a session: fixed when it first reads it, the settings that shape its frames included (JSON).
CREATE TABLE codecs (
    session INTEGER NOT NULL,
    dialect TEXT NOT NULL,
    version INTEGER NOT NULL,
    settings BLOB NOT NULL,
    PRIMARY KEY (session, dialect)
) WITHOUT ROWID;

-- Loading a session asks for the few commands that are open, not for all that it ever had.
CREATE INDEX commands_open ON commands (session, number) WHERE status <> 'settled';
