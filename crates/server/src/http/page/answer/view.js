// An answer: a sentence first, then what to copy, what the memory is for, how batches compare, and what was assumed.
import { html } from "../preact.js";
import { bytes, duration, number, shortened, steady, variantName } from "../format.js";
import { Copy } from "./copy.js";
import { Curve } from "./curve.js";
import { Memory } from "./memory.js";
import { Lengths, Notes, Suggestions, Variants } from "./tables.js";

const EVIDENCE = {
  simulated: "simulated; nothing ran on a GPU",
  recorded: "from recordings of the program",
  probed: "run on a GPU",
  trained: "trained on a GPU",
};

/** What a person calls the model of a request. */
export function modelName(request) {
  const model = request?.model ?? {};
  const name = model.preset ?? model.hf?._name_or_path ?? model.hf?.model_type ?? (model.recorded ? "a recorded program" : null);
  return shortened(name ?? (model.exported ? "an exported graph" : model.layers ? `a model of ${model.layers.length} layers` : "a model"), 120);
}

/** The maxima, each that is larger than the one before. */
function largest(best) {
  const { max_batch: most, max_batch_without_retries: none } = best;
  if (most === none) return `${none}`;
  const first = steady(best) > none ? `, ${steady(best)} with retries in the first two steps only` : "";
  const later = most > steady(best) ? `; up to ${most} runs, but slower` : "";
  return `${none} without retries of the allocator${first}${later}`;
}

/** The answer in a sentence. */
export function Sentence({ result }) {
  const best = result.recommendation;
  const { micro_batch: batch, accumulation_steps: steps, global_batch: all, shortfall } = best;
  if (batch === 0) {
    const missing = best.missing_bytes ? `: one sample needs ${bytes(best.missing_bytes)} more` : "";
    const what = steady(best) > 0 ? "One sample runs, but without the safety margin" : best.max_batch > 0 ? "One sample runs, but the allocator frees its cache in every step" : "Nothing fits";
    return html`<p class="sentence">${what}${missing}.</p>`;
  }
  const fewer = shortfall > 0 && html`, ${shortfall} fewer than asked for`;
  if (result.variants[0]?.training.mode === "inference") {
    const inAll = all !== batch && html`, ${steps > 1 && html`${steps} times, `}${all} in all`;
    return html`<p class="sentence">Run <b>${batch}</b> ${batch === 1 ? "sample" : "samples"} at a time${inAll}${fewer}.</p>`;
  }
  return html`<p class="sentence">
    Train with a micro-batch of <b>${batch}</b>${steps > 1 && html` and <b>${steps}</b> accumulation steps`}${all !== batch &&
    html`: ${all} samples per optimizer step`}${fewer}.
  </p>`;
}

/** What else an answer is about: the length of a sample, and adapters. */
function others({ seq_len: tokens, lora }) {
  return [tokens && `${tokens} tokens`, lora && `LoRA of rank ${lora.r ?? 8}`].filter(Boolean);
}

function Figures({ result, request }) {
  const best = result.recommendation;
  const facts = [["with", [variantName(result.variants[0].training), ...others(request.model ?? {})].join(", ")]];
  const reserved = `${bytes(best.peak_reserved_bytes)}; the limit is ${bytes(best.limit_bytes)}`;
  facts.push(best.micro_batch ? ["peak reserved", reserved] : ["the limit is", bytes(best.limit_bytes)]);
  facts.push(["largest batch", largest(best)]);
  if (best.limited_by) facts.push(["limited by", best.limited_by]);
  facts.push(["evidence", EVIDENCE[best.evidence] ?? best.evidence]);
  if (best.step_ms) {
    const from = best.speed_from ? ` (${best.speed_from})` : "";
    facts.push(["time", `${duration(best.step_ms)} for a micro-batch, ${number(best.samples_per_second)} samples a second${from}`]);
  }
  return html`<dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}

/** What many steps in one process came to. */
function Soak({ soak }) {
  if (!soak) return null;
  return html`<p>Batch ${soak.batch} was followed over ${soak.report?.steps} steps of all shapes: the answer is what lasts.</p>`;
}

/** An answer with everything that stands behind it. `apply` takes a change of the question, where there is one to change. */
export function Answer({ fit, apply }) {
  const { result, request } = fit;
  const { environment } = result;
  const best = result.recommendation;
  return html`<article class="answer">
    <h2>${modelName(request)} <small>on ${environment.gpu} (${environment.device})</small></h2>
    <${Sentence} result=${result} />
    <${Copy} fit=${fit} />
    <${Figures} result=${result} request=${request} />
    <${Soak} soak=${result.soak} />
    <${Memory} best=${best} />
    <${Curve} fit=${fit} />
    <${Lengths} table=${result.lengths} />
    <${Variants} variants=${result.variants} />
    <${Suggestions} result=${result} apply=${apply} />
    <${Notes} result=${result} />
    <p class="links"><a href=${`#/fit/${fit.id}`}>Link to this answer</a>
      ${best.micro_batch > 0 && html`<a href=${`#/step/fit/${fit.id}`}>The step: each tensor over time</a>`}</p>
  </article>`;
}
