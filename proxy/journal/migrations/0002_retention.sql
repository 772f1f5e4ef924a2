-- What retention needs to know of a session without reading its events.

-- `bytes` is what its events, source frames and files take; of its events those up to row `counted`.
-- A tombstone whose session was not deleted but kept no longer has the state `expired`.
ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;

UPDATE sessions SET
    bytes = (
        SELECT coalesce(sum(length(e.body)), 0) FROM event_index i JOIN events e ON e.row = i.row
        WHERE i.session = key
    ) + (
        SELECT coalesce(sum(length(data)), 0) FROM frames WHERE session = key
    ) + (
        SELECT coalesce(sum(size), 0) FROM session_blobs JOIN blobs USING (sha256) WHERE session = key
    ),
    counted = (SELECT coalesce(max(row), 0) FROM event_index WHERE session = key);
