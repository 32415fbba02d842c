-- An answer is also `recorded` (simulated from recordings of the program itself) or `trained` (the program itself ran with
-- that batch), and a model may be a recording, which then decides precision, optimizer and checkpointing: those columns
-- say `recorded` where it does.
--
-- SQLite cannot change a CHECK, so the table is made anew and its rows move; nothing refers to it. In PostgreSQL this
-- is ALTER TABLE recommendation DROP CONSTRAINT ..., ADD CONSTRAINT ... for each of them.
CREATE TABLE recommendation_anew (
    id                        TEXT    NOT NULL PRIMARY KEY,
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
    id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode, limit_bytes,
    micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries, peak_allocated_bytes,
    peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version, created_at)
SELECT
    id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode, limit_bytes,
    micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries, peak_allocated_bytes,
    peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version, created_at
  FROM recommendation;

DROP TABLE recommendation;
ALTER TABLE recommendation_anew RENAME TO recommendation;
CREATE INDEX recommendation_of_model ON recommendation (model, id);
