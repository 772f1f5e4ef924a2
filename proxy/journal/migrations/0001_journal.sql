-- The journal as Dragoman 0.1 writes it. Times are Unix milliseconds.

-- `key` is never reused: a deleted session stays as a tombstone. Entries up to seq `pruned` are gone.
-- `erasing` is 1 while a deletion is under way, so that it is finished after a crash.
-- `bytes` is what its events, source frames and files take; of its events those up to row `counted`.
-- A tombstone whose session was not deleted but kept no longer has the state `expired`.
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    route TEXT NOT NULL,
    dialect TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    secret BLOB NOT NULL,
    title TEXT,
    state TEXT NOT NULL DEFAULT 'idle',
    archived_at INTEGER,
    updated_at INTEGER NOT NULL,
    pruned INTEGER NOT NULL DEFAULT 0,
    erased_at INTEGER,
    erasing INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    counted INTEGER NOT NULL DEFAULT 0
);
-- Each is in the order of `key` besides, so that a page of a list is read without sorting.
CREATE INDEX sessions_by_owner ON sessions (owner);
CREATE INDEX sessions_by_route ON sessions (route);
CREATE INDEX sessions_erasing ON sessions (key) WHERE erasing = 1;
-- A start takes up the sessions with work, which are few, and does not look at all the others.
CREATE INDEX sessions_at_work ON sessions (key) WHERE state IN ('running', 'paused');

-- A session that moves to another backend gets a leg more. `resumes` is the number of an earlier leg whose session at its
-- backend this one goes on with.
CREATE TABLE legs (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    backend TEXT NOT NULL,
    native_id TEXT,
    state BLOB,
    resumes INTEGER,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
-- Retention asks for the backend of every session: without this it reads the whole state of each leg.
CREATE INDEX legs_backend ON legs (session, number, backend);
-- A new session gets a name that its backend has not given yet.
CREATE INDEX legs_by_name ON legs (backend, native_id);

-- Apart from `legs`: a position moves all the time, and a snapshot beside it would be rewritten with it.
-- `row` is the newest row of `events` when it was stored; a row above it holds a newer position.
CREATE TABLE positions (
    session INTEGER NOT NULL,
    leg INTEGER NOT NULL,
    row INTEGER NOT NULL,
    position BLOB NOT NULL,
    PRIMARY KEY (session, leg)
) WITHOUT ROWID;

-- In the order of arrival, a row for each write: a commit touches the last page only, whatever sessions it is for.
CREATE TABLE events (
    row INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    leg INTEGER NOT NULL,
    position BLOB,
    body BLOB NOT NULL
);

-- Where a session's entries are. Written late and sorted; complete up to the row in `meta.indexed`.
CREATE TABLE event_index (
    session INTEGER NOT NULL,
    first INTEGER NOT NULL,
    row INTEGER NOT NULL,
    PRIMARY KEY (session, first)
) WITHOUT ROWID;

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES ('indexed', 0);

CREATE TABLE aliases (
    owner TEXT NOT NULL,
    route TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    session INTEGER NOT NULL,
    PRIMARY KEY (owner, route, kind, name)
) WITHOUT ROWID;
CREATE INDEX aliases_by_session ON aliases (session);

CREATE TABLE commands (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    command_id TEXT NOT NULL,
    status TEXT NOT NULL,
    body BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
-- Loading a session asks for the few commands that are open, not for all that it ever had.
CREATE INDEX commands_open ON commands (session, number) WHERE status <> 'settled';

-- `data` is a zlib-compressed batch of frames, the newest of them numbered `last` and kept at `at`.
CREATE TABLE frames (
    row INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    leg INTEGER NOT NULL,
    last INTEGER NOT NULL,
    at INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX frames_by_number ON frames (session, leg, last);
CREATE INDEX frames_by_time ON frames (at);

CREATE TABLE blobs (
    sha256 TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    data BLOB NOT NULL
);

CREATE TABLE session_blobs (
    session INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (session, sha256)
) WITHOUT ROWID;
CREATE INDEX session_blobs_by_blob ON session_blobs (sha256);

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

-- What each backend of the configuration was at the last start.
CREATE TABLE backends (
    name TEXT PRIMARY KEY,
    dialect TEXT NOT NULL,
    url TEXT NOT NULL
) WITHOUT ROWID;

-- The shares of routes that were set at run time and hold in the place of the configuration's, in the order of `number`.
CREATE TABLE shares (
    route TEXT NOT NULL,
    number INTEGER NOT NULL,
    backend TEXT NOT NULL,
    weight INTEGER NOT NULL,
    PRIMARY KEY (route, number)
) WITHOUT ROWID;
