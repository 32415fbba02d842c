-- Files that requests name by their digests: exported graphs and recordings that somebody uploaded, and models that came
-- with a request and are not shown with its fit. Those are the rows of the table `model`, which this one replaces.
CREATE TABLE upload (
    -- SHA-256 of the contents, in hexadecimal.
    digest     TEXT    NOT NULL PRIMARY KEY,
    -- An exported graph, a recording, or the whole `model` of a request.
    kind       TEXT    NOT NULL CHECK (kind IN ('exported', 'recorded', 'model')),
    -- 1 once somebody uploaded it, 0 while it only came with a request.
    uploaded   INTEGER NOT NULL CHECK (uploaded IN (0, 1)),
    -- How long the contents are.
    bytes      INTEGER NOT NULL CHECK (bytes >= 0),
    -- What it takes here, which all of them together may take so much of.
    charged    INTEGER NOT NULL CHECK (charged >= 0),
    created_at INTEGER NOT NULL,
    -- When it was last uploaded or named in a request.
    used_at    INTEGER NOT NULL,
    -- What is known about it: nodes, or case, batch and events.
    about      TEXT    NOT NULL CHECK (json_valid(about)),
    -- The contents: the JSON text of a graph, a trace, or a pickle, compressed with gzip.
    gzip       BLOB    NOT NULL
) STRICT;

-- So that neither the sum of what they take nor the oldest ones are looked for among their contents.
CREATE INDEX upload_of_use ON upload (used_at, uploaded, charged, digest);

-- Further digests of the same contents: of the file as it was compressed, or of the archive that they were in.
CREATE TABLE upload_name (
    name   TEXT NOT NULL PRIMARY KEY,
    digest TEXT NOT NULL REFERENCES upload (digest) ON DELETE CASCADE
) STRICT;

CREATE INDEX upload_name_of_upload ON upload_name (digest);

-- Who refers to an upload: a fit or a probe, by its id.
CREATE TABLE upload_reference (
    digest TEXT NOT NULL REFERENCES upload (digest) ON DELETE CASCADE,
    what   TEXT NOT NULL,
    id     TEXT NOT NULL,
    PRIMARY KEY (digest, what, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX upload_reference_of_id ON upload_reference (what, id);

-- Uploads that work which has not ended needs. They are never dropped.
CREATE VIEW upload_in_use AS
SELECT upload_reference.digest AS digest
  FROM fit
  JOIN upload_reference ON upload_reference.what = 'fit' AND upload_reference.id = fit.id
 WHERE fit.state IN ('queued', 'running');

-- How long these are decompressed was not kept: at most as long as the largest body.
INSERT INTO upload (digest, kind, uploaded, bytes, charged, created_at, used_at, about, gzip)
SELECT digest, 'model', 0, 67108864, length(gzip) + 4096, created_at, created_at, '{}', gzip FROM model;

INSERT INTO upload_reference (digest, what, id)
SELECT upload.digest, 'fit', fit.id
  FROM fit JOIN upload ON instr(fit.request, upload.digest) > 0
 WHERE fit.state IN ('queued', 'running');

DROP TABLE model;
