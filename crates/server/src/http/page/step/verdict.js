// What came of a step or a recording, in words: the verdict, what shows it, what to change, and other settings of the allocator.

import { html } from "../preact.js";
import { bytes as size, words } from "../format.js";

const ENDS = {
  fits: "fits",
  fits_with_retries: "fits, but the allocator had to free its cache and ask again",
  out_of_memory: "runs out of memory",
  failed: "failed",
};

const FINDINGS = {
  nothing_wrong: "The recording shows nothing wrong with the program.",
  growth: "Memory grows: something is kept from each round.",
  fragmentation: "Memory is fragmented.",
  another_process: "Something else holds memory of the GPU.",
  batch_too_large: "The batch is too large.",
};

const setting = (text) => text || "default";

const limited = (bytes) => (bytes === null || bytes === undefined ? "none told" : size(bytes));

/** A row of figures with their names. */
function Facts({ facts }) {
  return html`<dl class="step-facts">
    ${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** What a probe found. */
export function ProbeVerdict({ report }) {
  return html`<section aria-labelledby="step-verdict" class="step-verdict ${report.verdict}">
    <h2 id="step-verdict">Batch ${report.batch} ${ENDS[report.verdict]}</h2>
    ${report.cause && html`<p>${report.cause}</p>`}
    ${report.peak && html`<p>Most memory is allocated in the ${report.peak.moment}.</p>`}
    <${Facts} facts=${[
      ["Peak allocated", size(report.peak_allocated_bytes)],
      ["Peak reserved", size(report.peak_reserved_bytes)],
      ["Limit", size(report.limit_bytes)],
      ["Retries", report.retries],
    ]} />
  </section>`;
}

/** Lines of Python and what they hold. */
function Lines({ caption, lines, others }) {
  return html`<div class="step-scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption>${caption}</caption>
    <thead><tr><th scope="col">Line</th><th scope="col" class="number">Bytes</th><th scope="col" class="number">Blocks</th></tr></thead>
    <tbody>
      ${lines.map((line) => html`<tr>
        <th scope="row">${line.line ?? "no line of Python"}</th>
        <td class="number">${size(line.bytes)}</td><td class="number">${line.blocks}</td>
      </tr>`)}
      ${others?.blocks > 0 && html`<tr>
        <th scope="row">other lines</th><td class="number">${size(others.bytes)}</td><td class="number">${others.blocks}</td>
      </tr>`}
    </tbody>
  </table></div>`;
}

/** What a replay found. */
export function ReplayVerdict({ report }) {
  const { findings, recording } = report;
  const exactness = report.equals_recording
    ? `all ${recording.events.toLocaleString("en")} events came out as PyTorch's, addresses included`
    : `replayed on ${report.addresses === "recorded" ? "the recorded addresses" : "simulated memory"}`;
  const isOnlyEnd = !findings.has_stacks && findings.finding === "nothing_wrong";
  return html`<section aria-labelledby="step-verdict" class="step-verdict ${findings.finding}">
    <h2 id="step-verdict">${isOnlyEnd ? `The recording ${ENDS[report.verdict]}.` : FINDINGS[findings.finding]}</h2>
    <p>The recording ${ENDS[report.verdict]}${recording.ends_out_of_memory && ", up to where it stopped"}; ${exactness}.</p>
    ${findings.evidence.length > 0 && html`<ul>${findings.evidence.map((sentence) => html`<li>${sentence}</li>`)}</ul>`}
    ${findings.advice && html`<p class="step-advice"><strong>Change:</strong> ${findings.advice}</p>`}
    <${Facts} facts=${[
      ["Peak allocated", size(report.peak_allocated_bytes)],
      ["Peak reserved", size(report.peak_reserved_bytes)],
      ["Limit", limited(report.limit_bytes)],
      ["Allocator", setting(report.allocator)],
      ["Retries", report.retries],
      ["Refused", report.ooms],
    ]} />
    ${findings.at_peak.length > 0 && findings.has_stacks && html`<${Lines}
      caption="Who holds the memory when most is allocated" lines=${findings.at_peak} others=${findings.others_at_peak} />`}
    ${findings.growth && html`<${Lines} caption="What each round leaves behind" lines=${findings.growth.lines} />`}
    ${report.notes.length > 0 && html`<details><summary>Notes</summary><ul>${report.notes.map((note) => html`<li>${note}</li>`)}</ul></details>`}
  </section>`;
}

/** The same requests under other settings, best first. */
export function Comparison({ comparison, used }) {
  const caption = `The same requests under other settings of the allocator, with ${
    comparison.limit_bytes === null ? "no limit" : `a limit of ${size(comparison.limit_bytes)}`}, best first`;
  return html`<div class="step-scroll" tabindex="0" role="region" aria-label="Comparison of allocator settings"><table>
    <caption>${caption}</caption>
    <thead><tr>
      <th scope="col"><code>PYTORCH_CUDA_ALLOC_CONF</code></th><th scope="col">Ends</th>
      <th scope="col" class="number">Peak reserved</th><th scope="col" class="number">Retries</th>
      <th scope="col" class="number">No retries from</th>
    </tr></thead>
    <tbody>${comparison.rows.map((row) => html`<tr class=${row.allocator === used ? "step-used" : ""}>
      <th scope="row"><code>${setting(row.allocator)}</code>${row.allocator === used && " (as replayed)"}</th>
      <td>${words(row.verdict)}</td>
      <td class="number">${size(row.peak_reserved_bytes)}</td>
      <td class="number">${row.retries}</td>
      <td class="number">${row.smallest_limit_bytes === null ? "–" : size(row.smallest_limit_bytes)}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

export { Facts };
