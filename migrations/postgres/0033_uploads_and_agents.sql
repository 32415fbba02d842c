-- As migrations/0033_uploads_and_agents.sql, which says what the columns are for.
ALTER TABLE upload ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX upload_of_owner ON upload (owner, charged);

CREATE TABLE upload_namer (
    owner    TEXT COLLATE "C" NOT NULL,
    name     TEXT COLLATE "C" NOT NULL REFERENCES upload_name (name) ON DELETE CASCADE,
    named_at BIGINT NOT NULL,
    PRIMARY KEY (owner, name)
);

CREATE INDEX upload_namer_of_name ON upload_namer (name);

INSERT INTO upload_namer (owner, name, named_at) SELECT '', name, number FROM upload_name;

ALTER TABLE agent ADD COLUMN rules TEXT COLLATE "C" NOT NULL DEFAULT '';
