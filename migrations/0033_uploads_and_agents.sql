-- Whose uploads are, as far as room for them goes: the API key that sent one first, empty where none is needed.
ALTER TABLE upload ADD COLUMN owner TEXT NOT NULL DEFAULT '';

CREATE INDEX upload_of_owner ON upload (owner, charged);

-- Which keys have sent contents under which further digest, and when last. Each keeps the last few of its own; a name goes with the
-- last that keeps it.
CREATE TABLE upload_namer (
    owner    TEXT    NOT NULL,
    name     TEXT    NOT NULL REFERENCES upload_name (name) ON DELETE CASCADE,
    named_at INTEGER NOT NULL,
    PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX upload_namer_of_name ON upload_namer (name);

INSERT INTO upload_namer (owner, name, named_at) SELECT '', name, rowid FROM upload_name;

-- By which rules an agent answers: those of another build are given nothing.
ALTER TABLE agent ADD COLUMN rules TEXT NOT NULL DEFAULT '';
