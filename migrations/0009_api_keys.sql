-- Who may ask where not everybody may. A key is 256 bits of chance, of which only the digest is here: a fast one will do, since
-- nobody can try so many. Keys that were revoked stay, so that a log that names one can be read.
CREATE TABLE api_key (
    id         TEXT    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    scope      TEXT    NOT NULL CHECK (scope IN ('read', 'fit', 'admin')),
    -- SHA-256 of the key.
    digest     BLOB    NOT NULL CHECK (length(digest) = 32),
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;

-- A name is free again when its key was revoked.
CREATE UNIQUE INDEX api_key_of_name ON api_key (name) WHERE revoked_at IS NULL;
