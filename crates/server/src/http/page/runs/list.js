// Scripts that ran on a virtual GPU, as `batchfit run` stored them, newest first.
import { html, useEffect, useState } from "../preact.js";
import { Problem, api } from "../client.js";
import { bytes, moment, shortened, words } from "../format.js";
import { Table } from "../answer/tables.js";

export default function RunsView() {
  const [{ items, next }, setPage] = useState({ items: null, next: null });
  const [cursor, setCursor] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const query = cursor ? `?cursor=${encodeURIComponent(cursor)}` : "";
    api(`/v1/runs${query}`, { signal }).then(
      (answer) => setPage((before) => ({ items: cursor ? [...(before.items ?? []), ...answer.items] : answer.items, next: answer.next })),
      (error) => signal.aborted || setProblem(error instanceof Problem ? error.message : String(error)),
    );
    return () => controller.abort();
  }, [cursor]);
  const rows = (items ?? []).map((run) => [
    html`<a href=${`#/run/${encodeURIComponent(run.id)}`}>${shortened(run.command, 80)}</a>`,
    run.gpus > 1 ? `${run.gpus}x${run.card}` : run.card,
    words(run.verdict),
    bytes(run.peak_allocated_bytes ?? NaN),
    bytes(run.peak_reserved_bytes),
    bytes(run.limit_bytes),
    run.certainty,
    moment(run.created_at),
  ]);
  return html`<h1>Runs</h1>
    <p>What came of scripts on a virtual GPU. <code>batchfit run --on rtx4090 -- python train.py</code> runs one on a machine of yours, and stores the answer in the database of that machine.</p>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <p role="status">${items === null ? "Asking …" : `${items.length} shown`}</p>
    ${rows.length > 0 && html`<${Table} label="Runs" rows=${rows}
      columns=${["command", "card", "verdict", "#peak allocated", "#peak reserved", "#limit", "certainty", "ended"]} />`}
    ${next && html`<button type="button" onClick=${() => setCursor(next)}>Older ones</button>`}`;
}
