// Asks the service for the events of a step.

import { api } from "../client.js";

const probe = (document, signal) =>
  api("/v1/probes", {
    method: "POST",
    headers: { "content-type": "application/json" },
    json: { ...document, detail: "events" },
    signal,
  });

/** The steps of a request with a batch. */
export async function ofQuestion(question, signal) {
  return { kind: "probe", report: await probe(question, signal) };
}

/** The steps of what a stored fit recommends. */
export async function ofFit(fitId, signal) {
  const fit = await api(`/v1/fits/${encodeURIComponent(fitId)}`, { signal });
  const best = fit.result?.variants?.[0];
  if (!best?.recommendation.micro_batch) throw new Error("this answer has no batch whose step could be shown");
  const { micro_batch: batch, accumulation_steps: accumulation } = best.recommendation;
  const request = { ...fit.request, training: { ...best.training, accumulation }, batch };
  // A search is an answer's, and no probe's.
  delete request.search;
  return { kind: "probe", report: await probe(request, signal) };
}

/** The steps of a script that ran on a virtual GPU. */
export async function ofRun(runId, signal) {
  return { kind: "replay", report: await api(`/v1/runs/${encodeURIComponent(runId)}/step`, { signal }) };
}

/** What is asked about a recording beside itself: `memory_limit`, `allocator`. */
function query(asked) {
  const given = Object.entries(asked).filter(([, value]) => value);
  return new URLSearchParams(given).toString();
}

const replay = (file, asked, signal) =>
  api(`/v1/replays?${query(asked)}`, {
    method: "POST",
    headers: { "content-type": "application/octet-stream" },
    body: file,
    signal,
  });

/** What a recording did. */
export async function ofSnapshot(file, asked, signal) {
  return { kind: "replay", report: await replay(file, { ...asked, events: "true" }, signal) };
}

/** What it would have taken under other settings of the allocator: replays it a hundred times. */
export async function comparison(file, asked, signal) {
  const report = await replay(file, { ...asked, compare: "true" }, signal);
  return report.comparison;
}
