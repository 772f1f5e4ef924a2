-- How the newest message of a session that is over ended: those that an operator looks for are few.
ALTER TABLE sessions ADD COLUMN outcome TEXT;
CREATE INDEX sessions_failed ON sessions (key) WHERE outcome IN ('failed', 'refused', 'unknown');
