// What the memory is for at the peak, against the limit; what stays free is hatched.
import { html } from "../preact.js";
import { bytes, percent, words } from "../format.js";

/** The parts of the limit, largest first: categories, what the allocator keeps of freed tensors, and what stays free. */
export function parts(best) {
  const held = (best.why?.at_peak ?? []).map(({ category, bytes: size }) => ({ name: words(category), size, kind: category }));
  held.sort((one, other) => other.size - one.size);
  const tensors = held.reduce((sum, { size }) => sum + size, 0) || best.peak_allocated_bytes;
  if (held.length === 0) held.push({ name: "tensors", size: tensors, kind: "tensors" });
  // What one sample takes is more than the limit, by what is missing.
  if (best.micro_batch === 0) {
    const rest = best.limit_bytes + best.missing_bytes - tensors;
    if (rest > 0 && best.why?.limit?.kind !== "host") held.push({ name: "fragmentation and safety margin", size: rest, kind: "kept" });
    return held;
  }
  const kept = best.peak_reserved_bytes - tensors;
  if (kept > 0) held.push({ name: "kept by the allocator", size: kept, kind: "kept" });
  const free = best.limit_bytes - best.peak_reserved_bytes;
  if (free > 0) held.push({ name: "free", size: free, kind: "free" });
  return held;
}

function Modules({ peak, of }) {
  if (!peak?.modules?.length) return null;
  const rows = peak.modules.map(({ module, bytes: size }) => [module, size]);
  if (peak.other_modules > 0) rows.push([`${peak.other_modules} others`, peak.other_modules_bytes]);
  return html`<details>
    <summary>By module, at the peak: ${peak.moment}</summary>
    <div class="wide" tabindex="0" role="region" aria-label=${`Memory by module${of}`}><table>
      <thead><tr><th scope="col">module</th><th scope="col" class="n">bytes</th><th scope="col" class="n">share</th></tr></thead>
      <tbody>${rows.map(
        ([name, size]) => html`<tr><td class="name">${name}</td><td class="n">${bytes(size)}</td><td class="n">${percent(size / peak.allocated_bytes)}</td></tr>`,
      )}</tbody>
    </table></div>
  </details>`;
}

/** `of` tells apart the memory of several answers on one page. */
export function Memory({ best, of = "" }) {
  if (!best.peak_reserved_bytes || !best.limit_bytes) return null;
  const all = parts(best);
  const total = all.reduce((sum, { size }) => sum + size, 0);
  const title = best.micro_batch === 0 ? `What one sample takes: ${bytes(total)}` : "Memory at the peak";
  return html`<section aria-label=${`Memory at the peak${of}`}>
    <h3>${title}</h3>
    <div class="stack" aria-hidden="true">
      ${all.map(({ name, size, kind }) => html`<span class=${`part c-${kind}`} style=${{ flexGrow: size / total }} title=${`${name}: ${bytes(size)}`}></span>`)}
    </div>
    <table class="legend">
      <thead><tr><th scope="col">what for</th><th scope="col" class="n">bytes</th><th scope="col" class="n">of the limit</th></tr></thead>
      <tbody>${all.map(
        ({ name, size, kind }) => html`<tr>
          <td><span class=${`key c-${kind}`} aria-hidden="true"></span>${name}</td>
          <td class="n">${bytes(size)}</td>
          <td class="n">${percent(size / best.limit_bytes)}</td>
        </tr>`,
      )}</tbody>
    </table>
    <${Modules} peak=${best.why?.peak} of=${of} />
  </section>`;
}
