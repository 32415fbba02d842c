-- What was asked, what came of it, and the recommendations in columns, so that they can be filtered over HTTP and read
-- with sqlite3 alike. Times are Unix milliseconds. PostgreSQL has no STRICT: drop the word, and read TEXT with
-- json_valid as jsonb.

-- One row for each fit. While a fit waits or runs, nobody else can queue the same question: fit_in_flight.
CREATE TABLE fit (
    id               TEXT    NOT NULL PRIMARY KEY,
    fingerprint      TEXT    NOT NULL,
    batchfit_version TEXT    NOT NULL,
    state            TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
    model            TEXT    NOT NULL,
    device           TEXT    NOT NULL,
    lane             TEXT    NOT NULL,
    attempts         INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    request          TEXT    NOT NULL CHECK (json_valid(request)),
    result           TEXT             CHECK (result IS NULL OR json_valid(result)),
    error            TEXT             CHECK (error IS NULL OR json_valid(error)),
    created_at       INTEGER NOT NULL,
    started_at       INTEGER,
    finished_at      INTEGER,
    CHECK ((state = 'done') = (result IS NOT NULL)),
    CHECK ((state = 'failed') = (error IS NOT NULL)),
    CHECK ((state IN ('done', 'failed', 'cancelled')) = (finished_at IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX fit_in_flight ON fit (fingerprint) WHERE state IN ('queued', 'running');
CREATE INDEX fit_of_fingerprint ON fit (fingerprint, id);
CREATE INDEX fit_of_state ON fit (state, id);

-- One row for each batch that somebody asked to probe.
CREATE TABLE probe (
    id          TEXT    NOT NULL PRIMARY KEY,
    fingerprint TEXT    NOT NULL,
    model       TEXT    NOT NULL,
    device      TEXT    NOT NULL,
    batch       INTEGER NOT NULL CHECK (batch > 0),
    verdict     TEXT    NOT NULL CHECK (verdict IN ('fits', 'fits_with_retries', 'out_of_memory', 'failed')),
    request     TEXT    NOT NULL CHECK (json_valid(request)),
    report      TEXT    NOT NULL CHECK (json_valid(report)),
    created_at  INTEGER NOT NULL
) STRICT;

-- One row for each variant of a finished fit; rank 1 is the answer. Batches count samples, memory is in bytes.
CREATE TABLE recommendation (
    id                        TEXT    NOT NULL PRIMARY KEY,
    fit_id                    TEXT    NOT NULL REFERENCES fit (id),
    rank                      INTEGER NOT NULL CHECK (rank >= 1),
    model                     TEXT    NOT NULL,
    model_kind                TEXT    NOT NULL CHECK (model_kind IN ('preset', 'layers', 'exported', 'hf')),
    device                    TEXT    NOT NULL,
    gpu                       TEXT    NOT NULL,
    precision                 TEXT    NOT NULL CHECK (precision IN ('fp32', 'amp_fp16', 'amp_bf16', 'bf16', 'fp16')),
    optimizer                 TEXT             CHECK (optimizer IN ('sgd', 'sgd_momentum', 'adam', 'adamw')),
    optimizer_impl            TEXT             CHECK (optimizer_impl IN ('foreach', 'fused', 'for_loop')),
    checkpointing             TEXT    NOT NULL CHECK (checkpointing IN ('none', 'per_block', 'modules')),
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
    evidence                  TEXT    NOT NULL CHECK (evidence IN ('simulated', 'probed')),
    samples_per_second        REAL,
    batchfit_version          TEXT    NOT NULL,
    created_at                INTEGER NOT NULL,
    -- Optimizers belong to training.
    CHECK ((mode = 'train') = (optimizer IS NOT NULL)),
    CHECK ((mode = 'train') = (optimizer_impl IS NOT NULL)),
    UNIQUE (fit_id, rank)
) STRICT;

CREATE INDEX recommendation_of_model ON recommendation (model, id);
