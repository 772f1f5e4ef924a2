-- A start takes up the sessions with work, which are few, and does not look at all the others.
CREATE INDEX sessions_at_work ON sessions (key) WHERE state IN ('running', 'paused');

-- Retention asks for the backend of every session: without this it reads the whole state of each leg.
CREATE INDEX legs_backend ON legs (session, number, backend);
