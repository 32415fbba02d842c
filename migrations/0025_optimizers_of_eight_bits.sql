-- Optimizers of eight bits, and Adafactor. A check cannot be changed, so the table is made anew; the rows keep their numbers,
-- and a number that was given to a row that is gone is not given again. PostgreSQL: another check.
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
    optimizer                 TEXT             CHECK (optimizer IN
        ('sgd', 'sgd_momentum', 'adam', 'adamw', 'adamw_8bit', 'paged_adamw_8bit', 'adamw_8bit_torchao', 'adafactor',
         'adafactor_transformers', 'recorded')),
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
    step_ms                   REAL,
    optimizer_step_ms         REAL,
    speed_from                TEXT             CHECK (speed_from IN ('measured', 'calibrated', 'estimated')),
    pareto                    INTEGER          CHECK (pareto IN (0, 1)),
    objective                 TEXT    NOT NULL DEFAULT 'largest_batch' CHECK (objective IN ('largest_batch', 'throughput')),
    -- Optimizers belong to training.
    CHECK ((mode = 'train') = (optimizer IS NOT NULL)),
    CHECK ((mode = 'train') = (optimizer_impl IS NOT NULL)),
    UNIQUE (fit_id, rank)
) STRICT;

INSERT INTO recommendation_anew (
    number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode,
    limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
    peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version,
    created_at, step_ms, optimizer_step_ms, speed_from, pareto, objective)
SELECT
    number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode,
    limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
    peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version,
    created_at, step_ms, optimizer_step_ms, speed_from, pareto, objective
  FROM recommendation ORDER BY number;

INSERT INTO sqlite_sequence (name, seq) SELECT 'recommendation_anew', 0
 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'recommendation_anew');

UPDATE sqlite_sequence
   SET seq = coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name IN ('recommendation', 'recommendation_anew')), 0)
 WHERE name = 'recommendation_anew';

DROP TRIGGER recommendation_is_gone;
DROP TABLE recommendation;
ALTER TABLE recommendation_anew RENAME TO recommendation;

CREATE TRIGGER recommendation_is_gone AFTER DELETE ON recommendation BEGIN
    INSERT INTO recommendation_gone (number) VALUES (OLD.number);
    DELETE FROM recommendation_gone WHERE place <= (SELECT max(place) FROM recommendation_gone) - 10000;
END;
