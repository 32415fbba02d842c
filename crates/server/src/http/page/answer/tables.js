// Tables of an answer: lengths, variants, what else would help; and what was assumed.
import { html } from "../preact.js";
import { bytes, number, ofForm, percent, shortened, variantName } from "../format.js";

/** A table that scrolls by itself where the screen is narrow. `columns` are names; those that begin with `#` hold numbers. */
export function Table({ label, columns, rows }) {
  const isNumber = columns.map((column) => column.startsWith("#"));
  return html`<div class="wide" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${columns.map((column, index) => html`<th scope="col" class=${isNumber[index] ? "n" : ""}>${column.replace("#", "")}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell, index) => html`<td class=${isNumber[index] ? "n" : ""}>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

export function Variants({ variants }) {
  if (variants.length < 2) return null;
  const rows = variants.map(({ rank, training, cost, pareto, recommendation: best }) => [
    rank,
    variantName(training),
    best.micro_batch || "nothing fits",
    bytes(best.peak_reserved_bytes),
    best.samples_per_second ? number(best.samples_per_second) : "–",
    pareto === true ? "yes" : "",
    cost ?? "",
  ]);
  return html`<section aria-label="Variants">
    <h3>Variants</h3>
    <${Table} label="Variants, best first" rows=${rows}
      columns=${["#rank", "variant", "#micro-batch", "#peak reserved", "#samples/s", "unbeaten", "cost"]} />
  </section>`;
}

/** Changes of a question. Where nothing fits, those that make one sample fit; the others are counted. */
export function Suggestions({ result, apply }) {
  const { suggestions, suggested_for: wanted, recommendation } = result;
  const nothingFits = recommendation.micro_batch === 0;
  if (!suggestions?.length) {
    const isChangeable = nothingFits && apply && result.environment.device.startsWith("sim:");
    return isChangeable && html`<p><button type="button" onClick=${() => apply({ suggest: true })}>What would make one sample fit?</button></p>`;
  }
  const shown = suggestions.filter(({ micro_batch: batch }) => batch > 0 || !nothingFits);
  const rows = shown.map((suggestion) => {
    const { change, micro_batch: batch, gained, reaches, samples_per_second: speed, peak_reserved_bytes: peak, cost, patch } = suggestion;
    const name = shortened(change, 200);
    const ask = apply && html`<br /><button type="button" class="quiet" onClick=${() => apply(patch)} aria-label=${`Ask with ${name}`}>Ask</button>`;
    return [
      html`${name}<br /><small>${cost}${reaches && `; takes ${wanted} at once`}</small>${ask}`,
      html`${batch || "–"}<br /><small>${gained > 0 ? `+${gained}` : gained}</small>`,
      html`${bytes(peak)}<br /><small>${speed && `${number(speed)} samples/s`}</small>`,
    ];
  });
  return html`<section aria-label="What else would help">
    <h3>${nothingFits ? (wanted === 1 ? "What makes one sample fit" : `What makes ${wanted} samples fit`) : `To take ${wanted} samples at once`}</h3>
    ${rows.length > 0 && html`<${Table} label="Changes of the question" columns=${["change", "#batch", "#peak reserved"]} rows=${rows} />`}
    ${rows.length < suggestions.length && html`<p>${suggestions.length - rows.length} other changes are not enough${rows.length > 0 && " alone"}.</p>`}
  </section>`;
}

/** A length, or the height and width of an image. */
const lengthName = (length) => (Array.isArray(length) ? length.join("x") : String(length));

export function Lengths({ table }) {
  if (!table) return null;
  const rows = table.rows.map(({ length, count, recommendation: best, within_budget: within }) => [
    lengthName(length),
    count,
    best.micro_batch,
    within ?? "–",
    bytes(best.peak_reserved_bytes),
  ]);
  const buckets = table.buckets.map(({ lengths: [from, to], count, micro_batch: batch, batches, padding }) => [
    lengthName(from) === lengthName(to) ? lengthName(from) : `${lengthName(from)} to ${lengthName(to)}`,
    count,
    batch,
    batches ?? "–",
    percent(padding),
  ]);
  return html`<section aria-label="Lengths">
    <h3>Largest safe batch if all samples had one length</h3>
    <${Table} label="Largest safe batches" rows=${rows} columns=${["length", "#samples", "#micro-batch", "#samples in budget", "#peak reserved"]} />
    ${buckets.length > 0 &&
    html`<h3>Buckets, each padded to its longest</h3>
      <${Table} label="Buckets" rows=${buckets} columns=${["length", "#samples", "#micro-batch", "#batches", "#padding"]} />`}
  </section>`;
}

export function Notes({ result }) {
  const { recommendation: best, assumptions, environment } = result;
  const notes = [...(best.notes ?? []), ...assumptions];
  const versions = ["driver", "cuda", "cudnn", "pytorch", "batchfit"].filter((name) => environment[name]);
  return html`<section aria-label="Notes">
    <h3>Notes</h3>
    ${notes.length === 0 ? html`<p>Nothing.</p>` : html`<ul>${notes.map((note) => html`<li>${ofForm(note)}</li>`)}</ul>`}
    <p class="versions">${versions.map((name) => `${name} ${environment[name]}`).join(", ")}</p>
  </section>`;
}
