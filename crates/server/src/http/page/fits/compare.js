// Two answers beside each other, and in what they differ.
import { html, useEffect, useState } from "../preact.js";
import { api } from "../client.js";
import { bytes, duration, moment, number, shortened, variantName } from "../format.js";
import { Memory } from "../answer/memory.js";
import { Sentence, modelName } from "../answer/view.js";
import { useFit } from "./one.js";

/** What is compared: a name, and how it is read from a fit. */
const ROWS = [
  ["model", ({ request }) => modelName(request)],
  ["card", ({ result }) => `${result.environment.gpu} (${result.environment.device})`],
  ["variant", ({ result }) => variantName(result.variants[0].training)],
  ["micro-batch", ({ result }) => result.recommendation.micro_batch],
  ["accumulation steps", ({ result }) => result.recommendation.accumulation_steps],
  ["samples per optimizer step", ({ result }) => result.recommendation.global_batch],
  ["largest batch without retries", ({ result }) => result.recommendation.max_batch_without_retries],
  ["largest batch", ({ result }) => result.recommendation.max_batch],
  ["peak reserved", ({ result }) => bytes(result.recommendation.peak_reserved_bytes)],
  ["limit", ({ result }) => bytes(result.recommendation.limit_bytes)],
  ["samples a second", ({ result }) => number(result.recommendation.samples_per_second ?? NaN)],
  ["time of a micro-batch", ({ result }) => duration(result.recommendation.step_ms ?? NaN)],
  ["limited by", ({ result }) => result.recommendation.limited_by],
  ["evidence", ({ result }) => result.recommendation.evidence],
];

function Choose({ label, value, fits, onChange }) {
  return html`<label>${label} <select value=${value} onChange=${(event) => onChange(event.target.value)}>
    <option value="" selected=${!value}>choose one</option>
    ${value && fits.every(({ id }) => id !== value) && html`<option value=${value} selected>${value}</option>`}
    ${fits.map(
      ({ id, model, device, micro_batch: batch, created_at: at }) =>
        html`<option value=${id} selected=${id === value}>${shortened(model, 40)}, ${device}, ${batch} (${moment(at)})</option>`,
    )}
  </select></label>`;
}

function Side({ name, id, now }) {
  if (!id) return html`<div class="side"><p>Choose an answer.</p></div>`;
  const { fit, problem } = now;
  if (problem) return html`<div class="side"><p class="problem" role="alert">${problem}</p></div>`;
  if (!fit?.result) return html`<div class="side"><p role="status">${fit ? `This fit is ${fit.state}.` : "Loading …"}</p></div>`;
  return html`<section class="side" aria-label=${`The ${name} answer`}>
    <h2><a href=${`#/fit/${encodeURIComponent(id)}`}>${modelName(fit.request)}</a></h2>
    <${Sentence} result=${fit.result} />
    <${Memory} best=${fit.result.recommendation} of=${` of the ${name} answer`} />
  </section>`;
}

function go(ids) {
  location.hash = `#/compare/${ids.map(encodeURIComponent).join("/")}`;
}

export default function CompareView({ parts }) {
  const [one = "", other = ""] = parts;
  const [fits, setFits] = useState([]);
  useEffect(() => {
    const controller = new AbortController();
    api("/v1/fits?state=done&limit=100", { signal: controller.signal }).then(
      ({ items }) => setFits(items),
      () => {},
    );
    return () => controller.abort();
  }, []);
  const sides = [useFit(one), useFit(other)];
  const both = sides.every(({ fit }) => fit?.result);
  return html`<h1>Two answers</h1>
    <form class="filter" onSubmit=${(event) => event.preventDefault()}>
      <${Choose} label="One" value=${one} fits=${fits} onChange=${(id) => go([id, other])} />
      <${Choose} label="Other" value=${other} fits=${fits} onChange=${(id) => go([one, id])} />
    </form>
    ${both &&
    html`<div class="wide" tabindex="0" role="region" aria-label="How they differ"><table class="compared">
      <thead><tr><th scope="col"><span class="unseen">what</span></th><th scope="col">one</th><th scope="col">other</th></tr></thead>
      <tbody>${ROWS.map(([name, of]) => {
        const [left, right] = sides.map(({ fit }) => of(fit));
        const differ = left !== right;
        return html`<tr class=${differ ? "differs" : ""}><th scope="row">${name}</th><td>${left}</td><td>${right}${differ && html`<span class="unseen"> (differs)</span>`}</td></tr>`;
      })}</tbody>
    </table></div>`}
    <div class="sides"><${Side} name="one" id=${one} now=${sides[0]} /><${Side} name="other" id=${other} now=${sides[1]} /></div>`;
}
