-- The 8-bit AdamW of transformers' Trainer, whose answers were refused. A check cannot be changed, so the table is made again; rows keep
-- their numbers, and a number of a row that is gone is not given again. Outcomes go with the rows that they are about: they are put
-- aside meanwhile.
CREATE TABLE recommendation_new (
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
        ('sgd', 'sgd_momentum', 'adam', 'adamw', 'adamw_8bit', 'adamw_bnb_8bit', 'paged_adamw_8bit', 'adamw_8bit_torchao', 'adafactor',
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
    model_digest TEXT NOT NULL DEFAULT '',
    strategy TEXT NOT NULL DEFAULT '' CHECK (strategy IN ('', 'none', 'ddp', 'zero1', 'fsdp2')),
    driver TEXT, cudnn TEXT, pytorch TEXT NOT NULL DEFAULT '', rules TEXT NOT NULL DEFAULT '',
    headroom_millionths INTEGER NOT NULL DEFAULT 0 CHECK (headroom_millionths BETWEEN 0 AND 1000000),
    headroom_from TEXT NOT NULL DEFAULT 'default'
    CHECK (headroom_from IN ('default', 'learnt', 'others', 'asked')),
    headroom_outcomes INTEGER NOT NULL DEFAULT 0 CHECK (headroom_outcomes >= 0),
    -- Optimizers belong to training.
    CHECK ((mode = 'train') = (optimizer IS NOT NULL)),
    CHECK ((mode = 'train') = (optimizer_impl IS NOT NULL)),
    UNIQUE (fit_id, rank)
) STRICT;

INSERT INTO recommendation_new SELECT * FROM recommendation ORDER BY number;

INSERT INTO sqlite_sequence (name, seq) SELECT 'recommendation_new', 0
 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'recommendation_new');

UPDATE sqlite_sequence
   SET seq = coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name IN ('recommendation', 'recommendation_new')), 0)
 WHERE name = 'recommendation_new';

CREATE TABLE outcome_aside AS SELECT * FROM outcome;

DROP TRIGGER recommendation_is_gone;
DROP TABLE recommendation;
ALTER TABLE recommendation_new RENAME TO recommendation;

DELETE FROM outcome;
INSERT INTO outcome SELECT * FROM outcome_aside ORDER BY number;
DROP TABLE outcome_aside;

CREATE TRIGGER recommendation_is_gone AFTER DELETE ON recommendation BEGIN
    INSERT INTO recommendation_gone (number) VALUES (OLD.number);
    DELETE FROM recommendation_gone WHERE place <= (SELECT max(place) FROM recommendation_gone) - 10000;
END;
