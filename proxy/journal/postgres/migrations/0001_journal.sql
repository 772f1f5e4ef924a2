-- The journal as Dragoman 0.1 writes it. Times are Unix milliseconds, unless their type says otherwise.
-- Texts have no character U+0000, which PostgreSQL does not store: `_database.py` says how it is written.

-- A process that uses the journal; without a `url`, where others forward to, it is the only one. `configuration` is a hash of that. Its `slot`, which no other has, is in the keys that it makes. `epoch` counts its connections: a commit of an older one changes nothing. It is gone
-- once `renewed_at`, by this server's clock, is older than a lease, and then a node that needs what it had deletes its row.
CREATE TABLE dragoman.nodes (
    node bigint PRIMARY KEY,
    epoch bigint NOT NULL,
    slot integer NOT NULL UNIQUE,
    name text NOT NULL,
    url text,
    configuration text NOT NULL DEFAULT '',
    started_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    UNIQUE (node, epoch)
);
CREATE SEQUENCE dragoman.node_numbers;

-- `key` is never reused: a deleted session stays as a tombstone. Entries up to seq `pruned` are gone.
-- `erasing` says that a deletion is under way, so that it is finished after a crash.
-- `bytes` is what its events, source frames and files take; of its events those up to seq `counted`, as for `updated_at`.
-- A tombstone whose session was not deleted but kept no longer has the state `expired`.
-- `node` has it in memory, if that node still lives.
CREATE TABLE dragoman.sessions (
    key bigint PRIMARY KEY,
    id text NOT NULL UNIQUE,
    owner text NOT NULL,
    route text NOT NULL,
    dialect text NOT NULL,
    created_at bigint NOT NULL,
    secret bytea NOT NULL,
    title text,
    state text NOT NULL DEFAULT 'idle',
    archived_at bigint,
    updated_at bigint NOT NULL,
    outcome text,
    pruned bigint NOT NULL DEFAULT 0,
    erased_at bigint,
    erasing boolean NOT NULL DEFAULT false,
    bytes bigint NOT NULL DEFAULT 0,
    counted bigint NOT NULL DEFAULT 0,
    node bigint
) WITH (fillfactor = 70);
CREATE INDEX sessions_by_owner ON dragoman.sessions (owner, key);
CREATE INDEX sessions_by_route ON dragoman.sessions (route, key);
CREATE INDEX sessions_erasing ON dragoman.sessions (key) WHERE erasing;
CREATE INDEX sessions_at_work ON dragoman.sessions (key) WHERE state IN ('running', 'paused');
CREATE INDEX sessions_failed ON dragoman.sessions (key) WHERE outcome IN ('failed', 'refused', 'unknown');

-- A session that moves to another backend gets a leg more. `resumes` is the number of an earlier leg whose session at its
-- backend this one goes on with.
CREATE TABLE dragoman.legs (
    session bigint NOT NULL,
    number integer NOT NULL,
    backend text NOT NULL,
    native_id text,
    state bytea,
    resumes integer,
    PRIMARY KEY (session, number)
) WITH (fillfactor = 70);
CREATE INDEX legs_by_name ON dragoman.legs (backend, md5(native_id));

-- Positions that came without events: `seq` is the last of the session when it was stored. A row of `events` after it
-- holds a newer position.
CREATE TABLE dragoman.positions (
    session bigint NOT NULL,
    leg integer NOT NULL,
    seq bigint NOT NULL,
    position bytea NOT NULL,
    PRIMARY KEY (session, leg)
);

-- A row for each write.
CREATE TABLE dragoman.events (
    session bigint NOT NULL,
    first bigint NOT NULL,
    count integer NOT NULL,
    leg integer NOT NULL,
    at bigint NOT NULL,
    position bytea,
    body bytea NOT NULL,
    PRIMARY KEY (session, first)
);

-- Sessions whose entries arrive from another journal, and that nobody finds before all of them are here.
CREATE TABLE dragoman.staged (
    session bigint PRIMARY KEY,
    node bigint NOT NULL
);

CREATE TABLE dragoman.aliases (
    owner text NOT NULL,
    route text NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    session bigint NOT NULL
);
-- An index takes no text as long as a name may be.
CREATE UNIQUE INDEX aliases_unique ON dragoman.aliases (owner, route, kind, md5(name));
CREATE INDEX aliases_by_session ON dragoman.aliases (session);
CREATE INDEX aliases_by_name ON dragoman.aliases (md5(name));

CREATE TABLE dragoman.commands (
    session bigint NOT NULL,
    number bigint NOT NULL,
    command_id text NOT NULL,
    status text NOT NULL,
    body bytea NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (session, number)
) WITH (fillfactor = 70);
CREATE INDEX commands_open ON dragoman.commands (session, number) WHERE status <> 'settled';

-- `data` is a zlib-compressed batch of frames, the newest of them numbered `last` and kept at `at`.
CREATE TABLE dragoman.frames (
    row bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session bigint NOT NULL,
    leg integer NOT NULL,
    last bigint NOT NULL,
    at bigint NOT NULL,
    data bytea NOT NULL
);
CREATE INDEX frames_by_number ON dragoman.frames (session, leg, last);
CREATE INDEX frames_by_time ON dragoman.frames (at);

CREATE TABLE dragoman.blobs (
    sha256 text PRIMARY KEY,
    size bigint NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE dragoman.session_blobs (
    session bigint NOT NULL,
    sha256 text NOT NULL,
    PRIMARY KEY (session, sha256)
);
CREATE INDEX session_blobs_by_blob ON dragoman.session_blobs (sha256);
-- Blobs that a node has put for a session that is still to name them.
CREATE TABLE dragoman.put_blobs (
    node bigint NOT NULL,
    sha256 text NOT NULL,
    PRIMARY KEY (sha256, node)
);

-- States of the log's readers: a cache, which may be emptied at any time. `data` is zlib-compressed.
CREATE TABLE dragoman.snapshots (
    session bigint NOT NULL,
    kind text NOT NULL,
    version bigint NOT NULL,
    cursor bigint NOT NULL,
    seq bigint NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (session, kind, version, cursor)
);

-- How a dialect shows a session: fixed when it first reads it, the settings that shape its frames included (JSON).
CREATE TABLE dragoman.codecs (
    session bigint NOT NULL,
    dialect text NOT NULL,
    version bigint NOT NULL,
    settings bytea NOT NULL,
    PRIMARY KEY (session, dialect)
);

-- What each backend of the configuration was at the last start.
CREATE TABLE dragoman.backends (
    name text PRIMARY KEY,
    dialect text NOT NULL,
    url text NOT NULL
);

-- The shares of routes that were set at run time, in the order of `number`.
CREATE TABLE dragoman.shares (
    route text NOT NULL,
    number integer NOT NULL,
    backend text NOT NULL,
    weight integer NOT NULL,
    PRIMARY KEY (route, number)
);
