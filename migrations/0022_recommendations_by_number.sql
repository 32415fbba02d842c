-- Recommendations are read once, in the order of their numbers, and kept in memory (src/store/recommendation/shelf.rs): a
-- number is the row's key, and no number is given twice. PostgreSQL: an identity column as the primary key.
CREATE TABLE recommendation_anew (
    number                    INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id                        TEXT    NOT NULL UNIQUE,
    fit_id                    TEXT    NOT NULL REFERENCES fit (id),
    rank                      INTEGER NOT NULL CHECK (rank >= 1),
    model                     TEXT    NOT NULL,
    model_kind                TEXT    NOT NULL CHECK (model_kind IN ('preset', 'layers', 'exported', 'hf', 'recorded')),
    device                    TEXT    NOT NULL,
    gpu                       TEXT    NOT NULL,
    precision                 TEXT    NOT NULL
        CHECK (precision IN ('fp32', 'amp_fp16', 'amp_bf16', 'bf16', 'fp16', 'recorded')),
    optimizer                 TEXT             CHECK (optimizer IN ('sgd', 'sgd_momentum', 'adam', 'adamw', 'recorded')),
    optimizer_impl            TEXT             CHECK (optimizer_impl IN ('foreach', 'fused', 'for_loop', 'recorded')),
    checkpointing             TEXT    NOT NULL CHECK (checkpointing IN ('none', 'per_block', 'modules', 'recorded')),
    mode                      TEXT    NOT NULL CHECK (mode IN ('train', 'inference')),
    limit_bytes               INTEGER NOT NULL,
    world_size                INTEGER NOT NULL CHECK (world_size >= 1),
    micro_batch               INTEGER NOT NULL CHECK (micro_batch >= 0),
    accumulation_steps        INTEGER NOT NULL,
    global_batch              INTEGER NOT NULL,
    max_batch                 INTEGER NOT NULL,
    max_batch_without_retries INTEGER NOT NULL,
    peak_allocated_bytes      INTEGER NOT NULL,
    peak_reserved_bytes       INTEGER NOT NULL,
    headroom_bytes            INTEGER NOT NULL,
    limited_by                TEXT    NOT NULL,
    evidence                  TEXT    NOT NULL CHECK (evidence IN ('simulated', 'recorded', 'probed', 'trained')),
    samples_per_second        REAL,
    batchfit_version          TEXT    NOT NULL,
    created_at                INTEGER NOT NULL,
    -- Optimizers belong to training.
    CHECK ((mode = 'train') = (optimizer IS NOT NULL)),
    CHECK ((mode = 'train') = (optimizer_impl IS NOT NULL)),
    UNIQUE (fit_id, rank)
) STRICT;

INSERT INTO recommendation_anew (
    number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode,
    limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
    peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version,
    created_at)
SELECT
    number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode,
    limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
    peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version,
    created_at
  FROM recommendation ORDER BY number;

-- The triggers of the old table would count its rows as deleted.
DROP TRIGGER recommendation_inserted;
DROP TRIGGER recommendation_deleted;
DROP TABLE recommendation;
DROP TABLE recommendation_count;
ALTER TABLE recommendation_anew RENAME TO recommendation;

-- The numbers of rows that are gone, in the order in which they went: servers that have them in memory drop them. Who has
-- missed more than these reads all rows anew.
CREATE TABLE recommendation_gone (
    place  INTEGER NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL
) STRICT;

CREATE TRIGGER recommendation_is_gone AFTER DELETE ON recommendation BEGIN
    INSERT INTO recommendation_gone (number) VALUES (OLD.number);
    DELETE FROM recommendation_gone WHERE place <= (SELECT max(place) FROM recommendation_gone) - 10000;
END;
