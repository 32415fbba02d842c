INSERT INTO request (digest, text) VALUES ('asked', '{"model": {"preset":  "resnet18"}, "b": 1, "a": 2}');
INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request_digest, result, created_at, finished_at, apart)
VALUES ('fit1', 'f1', '0.1.0', 'done', 'mine', 'sim:h200', 'simulated', 'asked', '{"z": 1, "recommendation": {"micro_batch": 8}}', 1, 2, 1);
INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request_digest, created_at, attempts, holder, lease_until)
VALUES ('fit2', 'f2', '0.1.0', 'running', 'mine', 'sim:h200', 'simulated', 'asked', 3, 1, 'server here', 9);
INSERT INTO recommendation (number, id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing,
    mode, limit_bytes, world_size, micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries,
    peak_allocated_bytes, peak_reserved_bytes, headroom_bytes, limited_by, evidence, samples_per_second, batchfit_version, created_at, pareto)
VALUES (7, 'answer1', 'fit1', 1, 'mine', 'preset', 'sim:h200', 'NVIDIA H200', 'fp32', 'adamw', 'foreach', 'none', 'train', 1000, 1, 8, 1, 8,
    10, 9, 900, 990, 10, 'activations', 'simulated', 0.1, '0.1.0', 2, 1);
INSERT INTO outcome (number, recommendation, batch, outcome, environment, owner, created_at) VALUES (4, 7, 8, 'fits', '{}', '', 5);
INSERT INTO upload (digest, kind, uploaded, bytes, charged, created_at, used_at, about, gzip) VALUES ('d', 'exported', 1, 2, 3, 4, 5, '{}', x'00ff');
INSERT INTO upload_name (name, digest) VALUES ('n', 'd');
INSERT INTO upload_reference (digest, what, id) VALUES ('d', 'fit', 'fit2');
INSERT INTO search (id, state, terms, created_at, updated_at) VALUES ('s', 'active', '{}', 1, 2);
INSERT INTO observation (search_id, number, batch, outcome, created_at) VALUES ('s', 1, 8, 'fits', 3);
INSERT INTO idempotency_key (owner, key, body, fit_id, created_at) VALUES ('', 'k', 'b', 'fit1', 1);
INSERT INTO agent (id, name, instance, owner, version, duty, cards, registered_at, seen_at) VALUES ('a', 'node', 'i', '', '1', 'ready', '[]', 1, 2);
INSERT INTO recommendation_gone (number) VALUES (9);
UPDATE outcome_count SET doubted = 3;
INSERT INTO virtual_run (id, command, card, gpus, verdict, certainty, limit_bytes, peak_reserved_bytes, batchfit_version, answer, step, created_at)
VALUES ('run1', 'python train.py', 'h200', 1, 'fits', 'exact', 1000, 900, '0.1.0', '{"b":  1, "a": 2}', x'00ff', 1);
