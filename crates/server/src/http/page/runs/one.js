// One run: its verdict, its phases, who holds the memory, how much was guessed, and the step.
import { html, useEffect, useState } from "../preact.js";
import { Problem, api } from "../client.js";
import { bytes, moment, shortened, words } from "../format.js";
import { Table } from "../answer/tables.js";
import { Facts } from "../step/verdict.js";
import StepView from "../step/view.js";

const CERTAINTY = {
  exact: "nothing was guessed",
  chosen: "some numbers were chosen: as a real run that chose so",
  estimated: "some sizes are estimates",
  doubtful: "the script may go another way on a card",
};

const orNone = (count) => (count === null || count === undefined ? "–" : bytes(count));

/** The module and the lines of the script that asked. */
function AskedBy({ module, stack }) {
  return html`${module && html`<p>Module: <code>${module}</code></p>`}
    ${stack.length > 0 && html`<ol>${stack.map((line) => html`<li><code>${line}</code></li>`)}</ol>`}`;
}

function Shortage({ shortage }) {
  if (!shortage) return null;
  const { phase, requested_bytes: requested, allocated_bytes: allocated, reserved_bytes: reserved, module, stack, message } = shortage;
  return html`<section aria-label="Out of memory">
    <h2>${shortage.is_fatal ? "Memory ran out" : "Memory ran out, and the script went on"}</h2>
    ${requested && html`<p>${phase ? `In ${phase} ` : ""}${bytes(requested)} are asked for where ${orNone(allocated)} are allocated and ${orNone(reserved)} reserved.</p>`}
    <${AskedBy} module=${module} stack=${stack} />
    ${message && html`<p>${message}</p>`}
  </section>`;
}

function Guessed({ answer }) {
  const lines = [
    ...answer.doubts.map(({ line, times }) => [`${line} reads what was never computed`, times]),
    ...answer.assumptions.map(({ what, times }) => [what, times]),
    ...answer.unanswered.map(({ what, times }) => [`no real answer of ${what}`, times]),
  ];
  return html`<section aria-label="Certainty">
    <h2>Certainty: ${answer.certainty}</h2>
    <p>${CERTAINTY[answer.certainty] ?? ""}</p>
    ${lines.length > 0 && html`<${Table} label="What was guessed" rows=${lines} columns=${["what", "#times"]} />`}
    ${answer.notes.length > 0 && html`<ul>${answer.notes.map((note) => html`<li>${note}</li>`)}</ul>`}
  </section>`;
}

export default function RunView({ parts }) {
  const id = parts[0] ?? "";
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    setFound(null);
    setProblem("");
    api(`/v1/runs/${encodeURIComponent(id)}`, { signal }).then(setFound, (error) => {
      if (!signal.aborted) setProblem(error instanceof Problem ? error.message : String(error));
    });
    return () => controller.abort();
  }, [id]);
  if (problem) return html`<p class="problem" role="alert">${problem}</p>`;
  if (!found) return html`<p role="status">Loading …</p>`;
  const { run, answer } = found;
  const phases = answer.phases.map((phase) => [
    phase.name,
    bytes(phase.peak_allocated_bytes),
    bytes(phase.peak_reserved_bytes),
    bytes(phase.allocated_bytes),
  ]);
  return html`<h1>${words(run.verdict)}: <code>${shortened(run.command, 120)}</code></h1>
    <p class="links"><a href="#/runs">All runs</a><a href=${`/v1/runs/${encodeURIComponent(id)}`}>JSON</a></p>
    <${Facts} facts=${[
      ["Card", `${run.gpus > 1 ? `${run.gpus}x` : ""}${run.card} (virtual)`],
      ["Peak allocated", orNone(run.peak_allocated_bytes)],
      ["Peak reserved", bytes(run.peak_reserved_bytes)],
      ["Limit", bytes(run.limit_bytes)],
      ["Steps", answer.steps],
      ["Retries", answer.retries],
      ["Grows in each step by", orNone(answer.growth_bytes_per_step)],
      ["Ended", moment(run.created_at)],
    ]} />
    <${Shortage} shortage=${answer.out_of_memory} />
    ${phases.length > 0 && html`<h2>Phases</h2>
      <${Table} label="Phases" rows=${phases} columns=${["phase", "#peak allocated", "#peak reserved", "#left after"]} />`}
    ${answer.at_peak && !answer.out_of_memory?.is_fatal && html`<section aria-label="The peak"><h2>Most is allocated in ${answer.at_peak.phase}</h2>
      <${AskedBy} ...${answer.at_peak} /></section>`}
    <${Guessed} answer=${answer} />
    ${run.has_step
      ? html`<section aria-label="The step"><h2>The step</h2><${StepView} runId=${id} /></section>`
      : html`<p>Nothing is kept of its allocations. They are of the newest runs, and of runs to their end (<code>--steps 0</code>) with <code>--report FOLDER</code>.</p>`}`;
}
