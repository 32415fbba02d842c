// The form: the model, the card, the limit and the target, and everything else behind "Options".
import { html, useEffect, useId, useRef, useState } from "../preact.js";
import { api } from "../client.js";
import { bytes, shortened, words } from "../format.js";
import { precision as PRECISIONS, optimizer as OPTIMIZERS, checkpointing as CHECKPOINTING } from "../words.js";
import { Check, Choice, LongField, Several, TextField } from "./fields.js";

/** A model that is no preset may leave these open. */
const RECORDED_SIZES = [{ name: "batches", summary: "the batch of each recording, such as 4,8,16", default: null }];
const OPEN_SIZES = [{ name: "seq_len", summary: "tokens of a sample, where the model leaves them open", default: null }];
/** Sizes that may be several; the others are hardly ever asked for. */
const MAIN_SIZES = new Set(["seq_len", "image_size", "batches"]);
const RANGES = { seq_len: "several as 64:900,512:30 or 32-512:8", image_size: "several as 160,192,224x320" };
const NAMES = { seq_len: "Sequence length", image_size: "Image size" };
const STEPS = "1000";

/** The presets and devices that the service knows; empty until they are there. */
function useCatalogue() {
  const [catalogue, setCatalogue] = useState({ presets: [], devices: [] });
  useEffect(() => {
    const controller = new AbortController();
    const get = (path, name) =>
      api(path, { signal: controller.signal }).then(
        ({ items }) => setCatalogue((before) => ({ ...before, [name]: items })),
        () => {},
      );
    get("/v1/presets", "presets");
    get("/v1/devices", "devices");
    return () => controller.abort();
  }, []);
  return catalogue;
}

function deviceName({ device, gpu, usable_bytes: usable, available }) {
  const memory = usable ? `, ${bytes(usable)}` : "";
  return available ? `${gpu ?? device}${memory} (${device})` : `${device}: not here`;
}

/** The sizes that a question's model lets a request say. */
function sizesOf(question, presets) {
  if (question.source) return question.source.startsWith('{"recorded"') ? RECORDED_SIZES : OPEN_SIZES;
  const named = question.model.trim();
  const preset = presets.find(({ name }) => name === named) ?? presets.find(({ name }) => name.endsWith(`/${named}`));
  const known = preset?.overrides ?? [];
  const given = Object.keys(question.sizes).filter((name) => known.every((size) => size.name !== name));
  return [...known, ...given.map((name) => ({ name, summary: "", default: null }))];
}

function Model({ question, change, presets, problem, onFiles }) {
  const list = useId();
  const input = useRef(null);
  const choose = html`<button type="button" class="quiet" onClick=${() => input.current.click()}>Choose a file</button>
    <input type="file" hidden multiple ref=${input} aria-label="File"
      onChange=${(event) => {
        onFiles([...event.target.files]);
        event.target.value = "";
      }} />`;
  if (question.source) {
    return html`<div class="field">
      <span class="label">Model</span>
      <p class="file"><span class="name">${shortened(question.label || "a file", 120)}</span>
        <button type="button" class="quiet" onClick=${() => change({ source: "", label: "", sizes: {} })}>Name a model instead</button></p>
      ${problem && html`<small class="wrong">${problem}</small>`}
      ${choose}
    </div>`;
  }
  return html`<div>
    <${TextField} label="Model" value=${question.model} list=${list} problem=${problem} placeholder="resnet50, gpt2, …"
      hint="a name of torchvision or of the Hugging Face hub, or drop a file here" onChange=${(model) => change({ model })} />
    <datalist id=${list}>${presets.map(({ name, summary }) => html`<option value=${name}>${summary}</option>`)}</datalist>
    ${choose}
  </div>`;
}

function Sizes({ sizes, question, change, wrong }) {
  if (sizes.length === 0) return null;
  return html`<div class="sizes">
    ${sizes.map(({ name, summary, default: usual }) => {
      const hint = [summary, RANGES[name]].filter(Boolean).join("; ");
      return html`<${TextField} key=${name} label=${NAMES[name] ?? words(name)} value=${question.sizes[name] ?? ""}
        placeholder=${usual === null ? "" : String(usual)} hint=${hint} problem=${wrong[`model/${name}`] ?? wrong[`lengths/${name}`]}
        onChange=${(value) => change({ sizes: { ...question.sizes, [name]: value } })} />`;
    })}
  </div>`;
}

export function Form({ question, change, wrong, onFiles, failure }) {
  const { presets, devices } = useCatalogue();
  const text = (name) => ({ value: question[name], onChange: (value) => change({ [name]: value }) });
  const sizes = sizesOf(question, presets);
  const cards = [["", "Any GPU of the service that is free"], ...devices.map((device) => [device.device, deviceName(device)])];
  const wrongModel = wrong.model ?? wrong["model/preset"] ?? wrong["model/exported"] ?? wrong["model/hf"] ?? wrong["model/recorded"];
  const isSet = (names) => names.some((name) => question[name].length > 0);
  const isWrong = Object.keys(wrong).some((place) => place === "more" || place.startsWith("training/") || place.startsWith("soak/"));
  const hasOptions = isWrong || isSet(["precision", "optimizer", "checkpointing", "accumulation", "objective", "suggest", "soak", "more"]);
  return html`<form onSubmit=${(event) => event.preventDefault()}>
    <${Model} question=${question} change=${change} presets=${presets} problem=${wrongModel} onFiles=${onFiles} />
    ${failure && html`<p class="problem" role="alert">${failure}</p>`}
    <${Sizes} sizes=${sizes.filter(({ name }) => MAIN_SIZES.has(name))} question=${question} change=${change} wrong=${wrong} />
    <${Choice} label="Card" choices=${cards} problem=${wrong.device} ...${text("device")} />
    <div class="pair">
      <${TextField} label="Limit" placeholder="12GiB or 0.8" hint="what the allocator may reserve" problem=${wrong.memory_limit} ...${text("limit")} />
      <${TextField} label="Target" placeholder="1024" inputmode="numeric" hint="samples for each optimizer step" problem=${wrong.target_batch} ...${text("target")} />
    </div>
    <details open=${hasOptions}>
      <summary>Options</summary>
      <${Sizes} sizes=${sizes.filter(({ name }) => !MAIN_SIZES.has(name))} question=${question} change=${change} wrong=${wrong} />
      <${Several} label="Precision" choices=${PRECISIONS} problem=${wrong["training/precision"]} value=${question.precision}
        hint="several are compared; none is fp32" onChange=${(precision) => change({ precision })} />
      <${Several} label="Optimizer" choices=${OPTIMIZERS} problem=${wrong["training/optimizer"]} value=${question.optimizer}
        hint="none is adamw" onChange=${(optimizer) => change({ optimizer })} />
      <${Several} label="Checkpointing" choices=${CHECKPOINTING} problem=${wrong["training/checkpointing"]} value=${question.checkpointing}
        onChange=${(checkpointing) => change({ checkpointing })} />
      <div class="pair">
        <${TextField} label="Accumulation steps" placeholder="1" inputmode="numeric" problem=${wrong["training/accumulation"]} ...${text("accumulation")} />
        <${Choice} label="Look for" choices=${[["", "the largest batch"], ["throughput", "the best throughput"]]} ...${text("objective")} />
      </div>
      <${Check} label="Say what else would help" checked=${Boolean(question.suggest)} onChange=${(on) => change({ suggest: on ? "yes" : "" })} />
      <${Check} label="Find the batch that lasts for many steps (soak)" checked=${Boolean(question.soak)} onChange=${(on) => change({ soak: on ? STEPS : "" })} />
      ${question.soak && html`<${TextField} label="Steps" inputmode="numeric" problem=${wrong["soak/steps"]} value=${question.soak}
        onChange=${(soak) => change({ soak })} />`}
      <${LongField} label="Other members of the request" hint=${'JSON, such as {"world_size": 4}'} problem=${wrong.more} ...${text("more")} />
    </details>
  </form>`;
}
