-- The name under which a backend knows a session is chosen when the session is made, and stored with its leg.
-- By this it is found whether a name is given already, and which sessions of earlier versions have none yet.
CREATE INDEX legs_by_name ON legs (backend, native_id);

-- What each backend of the configuration was at the last start.
CREATE TABLE backends (
    name TEXT PRIMARY KEY,
    dialect TEXT NOT NULL,
    url TEXT NOT NULL
) WITHOUT ROWID;
