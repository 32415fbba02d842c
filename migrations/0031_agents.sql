-- Machines on which an agent works on fits: see docs/agents.md. A row for each name; who has said nothing for longer than a lease is
-- lost. Which fits an agent works on is in the table of fits: their holder is `agent ` and the id here.
CREATE TABLE agent (
    id            TEXT    NOT NULL PRIMARY KEY,
    -- The machine: what requests say before `/cuda:0`.
    name          TEXT    NOT NULL UNIQUE,
    -- The process: chance of its own, so that it is known when it registers again, and another one is not taken for it.
    instance      TEXT    NOT NULL,
    -- The API key under which it registered; empty where none is needed.
    owner         TEXT    NOT NULL,
    version       TEXT    NOT NULL,
    duty          TEXT    NOT NULL CHECK (duty IN ('ready', 'draining', 'cordoned')),
    cards         TEXT    NOT NULL CHECK (json_valid(cards)),
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL
) STRICT;

-- Agents take fits by their lanes.
CREATE INDEX fit_of_lane ON fit (lane, id) WHERE state = 'queued';

-- Keys of one more scope.
CREATE TABLE api_key_of_scopes (
    id         TEXT    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    scope      TEXT    NOT NULL CHECK (scope IN ('read', 'fit', 'agent', 'admin')),
    -- SHA-256 of the key.
    digest     BLOB    NOT NULL CHECK (length(digest) = 32),
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;
INSERT INTO api_key_of_scopes (id, name, scope, digest, created_at, revoked_at)
SELECT id, name, scope, digest, created_at, revoked_at FROM api_key;
DROP TABLE api_key;
ALTER TABLE api_key_of_scopes RENAME TO api_key;

-- A name is free again when its key was revoked.
CREATE UNIQUE INDEX api_key_of_name ON api_key (name) WHERE revoked_at IS NULL;
