-- How a fit is asked for, beside what: who is served first, and for how long it may be worked on.
ALTER TABLE fit ADD COLUMN priority TEXT NOT NULL DEFAULT 'batch' CHECK (priority IN ('interactive', 'batch'));
ALTER TABLE fit ADD COLUMN timeout_seconds INTEGER CHECK (timeout_seconds >= 1);

-- Which fit a client asked for under a name of its own (the header Idempotency-Key), so that it may ask again when it does
-- not know what became of its request.
CREATE TABLE idempotency_key (
    -- The API key under which it was asked; empty where none is needed.
    owner      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    -- SHA-256 of the body, decompressed.
    body       TEXT    NOT NULL,
    fit_id     TEXT    NOT NULL REFERENCES fit (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_key_of_age ON idempotency_key (created_at);
CREATE INDEX idempotency_key_of_fit ON idempotency_key (fit_id);
