-- Descriptions of models that are too large to be shown with each fit: exported graphs of megabytes. The request of a
-- fit then names the description by its digest. Kept while a fit that refers to it waits or runs.
CREATE TABLE model (
    digest     TEXT    NOT NULL PRIMARY KEY,
    -- The JSON text of the request's `model`, compressed with gzip.
    gzip       BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
