// What is said of a moment and of a tensor: beside the pictures, and instead of them for those who do not see them.

import { html } from "../preact.js";
import { bytes as size, words } from "../format.js";
import { CATEGORIES } from "./data.js";
import { Facts } from "./verdict.js";

/** Tensors that the table names. */
const LARGEST = 20;

const number = (value) => value.toLocaleString("en");

const share = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(1)}%` : "–");

/** A tensor's name in one line: its module, and what it is there. */
const named = ({ module, operation }) => (module ? `${module} (${operation})` : operation);

/** What the cursor shows, as it is read out. */
export function spoken(steps, { event, block, pinned }) {
  const moment = `Event ${number(event)} of ${number(steps.events)}, ${steps.moment(event)}: ${
    size(steps.allocatedAt[event])} allocated, ${size(steps.reservedAt[event])} reserved.`;
  if (block === null) return moment;
  const tensor = steps.words(block);
  const purpose = tensor.category ? `${tensor.category}, ` : "";
  return `${named(tensor)}: ${purpose}${size(tensor.bytes)}${block === pinned ? ", pinned" : ""}. ${moment}`;
}

/** What colours mean. */
export function Legend({ steps, hasLimit }) {
  const used = new Set(steps.owners.map((owner) => owner.category));
  return html`<ul class="step-legend" aria-label="Colours">
    ${CATEGORIES.map((category, index) => used.has(category) && html`<li>
      <span class=${`step-swatch step-shade-${index}`}></span>${words(category)}</li>`)}
    ${!steps.hasCategories && html`<li>each colour is a line of Python</li>`}
    <li><span class="step-swatch step-line-reserved"></span>reserved</li>
    ${hasLimit && html`<li><span class="step-swatch step-line-limit"></span>limit</li>`}
    <li><span class="step-swatch step-chosen"></span>pinned</li>
  </ul>`;
}

/** Memory after an event. */
export function Moment({ steps, event }) {
  const free = steps.freeAt(event);
  return html`<section aria-labelledby="step-at" class="step-card">
    <h2 id="step-at">Event ${number(event)} of ${number(steps.events)}</h2>
    <${Facts} facts=${[
      ["Moment", steps.moment(event) + (event === steps.peakEvent ? ", the peak" : "")],
      ["Allocated", size(steps.allocatedAt[event])],
      ["Reserved", size(steps.reservedAt[event])],
      ["Free in segments", `${size(Math.max(0, free.bytes))}, ${free.pieces} ${free.pieces === 1 ? "piece" : "pieces"}`],
      ["Largest piece", size(free.largest)],
    ]} />
  </section>`;
}

/** A tensor: whose, what for, how large, from when to when. */
export function Tensor({ steps, block, isPinned, onGo, onPin }) {
  if (block === null || block === undefined) {
    return html`<section class="step-card" aria-labelledby="step-tensor"><h2 id="step-tensor">No tensor chosen</h2>
      <p>Point at one, or move to one with the arrow keys.</p></section>`;
  }
  const tensor = steps.words(block);
  const rounded = tensor.requested === tensor.bytes ? "" : ` (${size(tensor.requested)} asked for)`;
  return html`<section class="step-card" aria-labelledby="step-tensor">
    <h2 id="step-tensor" class="step-name">${tensor.module || tensor.operation}</h2>
    <${Facts} facts=${[
      ...(tensor.module ? [["Operation", tensor.operation]] : []),
      ...(tensor.category ? [["Purpose", tensor.category]] : []),
      ["Bytes", size(tensor.bytes) + rounded],
      ["Allocated at", tensor.from ? `event ${number(tensor.from)}, ${steps.moment(tensor.from)}` : "before the first event"],
      ["Freed at", tensor.to ? `event ${number(tensor.to)}, ${steps.moment(tensor.to)}` : "never, as far as this goes"],
      ["Address", `0x${tensor.address.toString(16)}`],
    ]} />
    <div class="step-tools">
      <button type="button" onClick=${() => onGo(tensor.from)}>Go to its allocation</button>
      ${tensor.to && html`<button type="button" onClick=${() => onGo(tensor.to)}>Go to its free</button>`}
      <button type="button" aria-pressed=${isPinned} onClick=${onPin}>${isPinned ? "Let go" : "Pin"}</button>
    </div>
  </section>`;
}

/** The same moment as tables: bytes by purpose, and the largest tensors. */
export function Tables({ steps, event, pinned, onPin }) {
  const all = steps.allocatedAt[event];
  const shares = steps.sharesAt(event);
  const of = steps.hasCategories ? "purpose" : "line";
  const title = (what) => `${what} at event ${number(event)}`;
  return html`<div class="step-tables">
    <div class="step-scroll" tabindex="0" role="region" aria-label="Bytes by ${of}"><table>
      <caption>${title(`Bytes by ${of}`)}</caption>
      <thead><tr><th scope="col">${of === "line" ? "Line" : "Purpose"}</th><th scope="col" class="number">Bytes</th><th scope="col" class="number">Share</th></tr></thead>
      <tbody>${shares.slice(0, LARGEST).map(([name, bytes]) => html`<tr>
        <th scope="row">${steps.hasCategories ? words(name) : name}</th>
        <td class="number">${size(bytes)}</td><td class="number">${share(bytes, all)}</td></tr>`)}</tbody>
    </table></div>
    <div class="step-scroll" tabindex="0" role="region" aria-label="Largest tensors"><table>
      <caption>${title("Largest tensors")}</caption>
      <thead><tr>
        ${steps.hasCategories && html`<th scope="col">Module</th>`}
        <th scope="col">${steps.hasCategories ? "Operation" : "Line"}</th>
        ${steps.hasCategories && html`<th scope="col">Purpose</th>`}
        <th scope="col" class="number">Bytes</th><th scope="col" class="number">From event</th><th scope="col" class="number">To event</th>
        <th scope="col">Pin</th>
      </tr></thead>
      <tbody>${steps.largestAt(event, LARGEST).map((block) => {
        const tensor = steps.words(block);
        return html`<tr key=${block}>
          ${steps.hasCategories && html`<th scope="row">${tensor.module}</th>`}
          ${steps.hasCategories ? html`<td>${tensor.operation}</td>` : html`<th scope="row">${tensor.operation}</th>`}
          ${steps.hasCategories && html`<td>${tensor.category}</td>`}
          <td class="number">${size(tensor.bytes)}</td><td class="number">${number(tensor.from)}</td>
          <td class="number">${tensor.to ? number(tensor.to) : "–"}</td>
          <td><button type="button" aria-pressed=${block === pinned} aria-label=${`Pin ${named(tensor)}`}
            onClick=${() => onPin(block)}>${block === pinned ? "Pinned" : "Pin"}</button></td>
        </tr>`;
      })}</tbody>
    </table></div>
  </div>`;
}
