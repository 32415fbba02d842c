// The form: the model, the card, the limit and the target, and everything else behind "Options".
import { html, useEffect, useId, useMemo, useRef, useState } from "../preact.js";
import { api } from "../client.js";
import { bytes, shortened, words } from "../format.js";
import { hasModel } from "../question.js";
import { precision as PRECISIONS, optimizer as OPTIMIZERS, checkpointing as CHECKPOINTING } from "../words.js";
import { Check, Choice, LongField, Several, TextField } from "./fields.js";

/** A model that is no preset may leave these open. */
const RECORDED_SIZES = [{ name: "batches", summary: "the batch of each recording, such as 4,8,16", default: null }];
const OPEN_SIZES = [{ name: "seq_len", summary: "tokens of a sample, where the model leaves them open", default: null }];
/** Sizes that may be several; the others are hardly ever asked for. */
const MAIN_SIZES = new Set(["seq_len", "image_size", "batches"]);
const RANGES = { seq_len: "several as 64:900,512:30 or 32-512:8", image_size: "several as 160,192,224x320" };
const NAMES = { seq_len: "Sequence length", image_size: "Image size", num_classes: "Classes", in_channels: "Channels", loss_chunks: "Chunks of the loss" };
/** What is asked about where the service has no GPU and nobody names a card. */
const COMMON = "sim:rtx4090";
const STEPS = "1000";
const STRATEGIES = ["ddp", "zero1", "fsdp2"];

/** The presets and devices that the service knows, when it is `ready`; `usual` is the card that is asked about where none is named. */
export function useCatalogue() {
  const [catalogue, setCatalogue] = useState({ presets: null, devices: null });
  useEffect(() => {
    const controller = new AbortController();
    const get = (path, name) =>
      api(path, { signal: controller.signal }).then(
        ({ items }) => setCatalogue((before) => ({ ...before, [name]: items })),
        () => setCatalogue((before) => ({ ...before, [name]: [] })),
      );
    get("/v1/presets", "presets");
    get("/v1/devices", "devices");
    return () => controller.abort();
  }, []);
  const { presets, devices } = catalogue;
  return useMemo(() => ({ ready: Boolean(presets && devices), presets: presets ?? [], devices: devices ?? [], usual: usualOf(devices ?? []) }), [catalogue]);
}

/** The question with what is meant where nobody says it: a card, and the tokens of a sample. */
export function meant(question, { presets, usual }) {
  if (!hasModel(question)) return question;
  const assumed = question.source ? [] : sizesOf(question, presets).filter(({ assumed: tokens }) => tokens);
  const sizes = Object.fromEntries(assumed.map(({ name, assumed: tokens }) => [name, String(tokens)]));
  const given = Object.entries(question.sizes).filter(([, value]) => value);
  return { ...question, device: question.device || usual, sizes: { ...sizes, ...Object.fromEntries(given) } };
}

const isReal = ({ device, available }) => available && !device.startsWith("sim:");
const usualOf = (devices) => (devices.some(isReal) || !devices.some(({ device }) => device === COMMON) ? "" : COMMON);

/** Sizes of cards as they are sold, in GB. */
const SOLD = [6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 94, 96, 141, 144, 180, 186, 288];
/** What a process uses outside PyTorch's allocator, in bytes. */
const OUTSIDE = 780 * 2 ** 20;

function deviceName({ device, gpu, usable_bytes: usable, available }) {
  if (!available) return `${device}: not here`;
  if (gpu && device.startsWith("sim:")) {
    const sold = SOLD.find((size) => size * 2 ** 30 >= usable + OUTSIDE);
    return sold ? `${gpu}, ${sold} GB` : gpu;
  }
  const memory = usable ? `, ${bytes(usable)}` : "";
  return `${gpu ?? device}${memory} (${device})`;
}

/** The sizes that a question's model lets a request say. */
export function sizesOf(question, presets) {
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
    ${sizes.map(({ name, summary, default: own, assumed: usual = own }) => {
      const hint = [summary, RANGES[name]].filter(Boolean).join("; ");
      return html`<${TextField} key=${name} label=${NAMES[name] ?? words(name)} value=${question.sizes[name] ?? ""}
        placeholder=${usual === null ? "" : String(usual)} hint=${hint} problem=${wrong[`model/${name}`] ?? wrong[`lengths/${name}`]}
        onChange=${(value) => change({ sizes: { ...question.sizes, [name]: value } })} />`;
    })}
  </div>`;
}

export function Form({ question, change, onAsk, wrong, onFiles, failure, catalogue }) {
  const { presets, devices, usual } = catalogue;
  const text = (name) => ({ value: question[name], onChange: (value) => change({ [name]: value }) });
  const sizes = sizesOf(question, presets);
  const any = usual ? [] : [["", "Any GPU of the service that is free"]];
  const cards = [...any, ...devices.filter(({ available }) => available).map((device) => [device.device, deviceName(device)])];
  const wrongModel = wrong.model ?? wrong["model/preset"] ?? wrong["model/exported"] ?? wrong["model/hf"] ?? wrong["model/recorded"];
  const isSet = (names) => names.some((name) => question[name].length > 0);
  const isWrong = Object.keys(wrong).some((place) => place === "more" || place.startsWith("training/") || place.startsWith("soak/"));
  const hasOptions = isWrong || isSet(["precision", "optimizer", "checkpointing", "accumulation", "objective", "suggest", "soak", "lora", "gpus", "parallel", "more"]);
  return html`<form id="question" onSubmit=${(event) => {
    event.preventDefault();
    onAsk();
  }}>
    <${Model} question=${question} change=${change} presets=${presets} problem=${wrongModel} onFiles=${onFiles} />
    ${failure && html`<p class="problem" role="alert">${failure}</p>`}
    <${Sizes} sizes=${sizes.filter(({ name }) => MAIN_SIZES.has(name))} question=${question} change=${change} wrong=${wrong} />
    <${Choice} label="Card" choices=${cards} problem=${wrong.device} ...${text("device")} value=${question.device || usual} />
    <div class="pair">
      <${TextField} label="Limit" placeholder="12GiB or 0.8" hint="what the allocator may reserve" problem=${wrong.memory_limit} ...${text("limit")} />
      <${TextField} label="Target" placeholder="1024" inputmode="numeric" hint="samples for each optimizer step" problem=${wrong.target_batch} ...${text("target")} />
    </div>
    <details open=${hasOptions}>
      <summary>Options</summary>
      <${Sizes} sizes=${sizes.filter(({ name }) => !MAIN_SIZES.has(name))} question=${question} change=${change} wrong=${wrong} />
      <${Several} label="Precision" choices=${PRECISIONS} problem=${wrong["training/precision"]} value=${question.precision}
        hint="tick several to compare; default fp32" onChange=${(precision) => change({ precision })} />
      <${Several} label="Optimizer" choices=${OPTIMIZERS} problem=${wrong["training/optimizer"]} value=${question.optimizer}
        hint="default adamw" onChange=${(optimizer) => change({ optimizer })} />
      <${Several} label="Checkpointing" choices=${CHECKPOINTING} problem=${wrong["training/checkpointing"]} value=${question.checkpointing}
        onChange=${(checkpointing) => change({ checkpointing })} />
      <div class="pair">
        <${TextField} label="LoRA rank" placeholder="16" hint="adapters on a model of transformers" problem=${wrong["model/lora"]} ...${text("lora")} />
        <${TextField} label="GPUs" placeholder="1" inputmode="numeric" problem=${wrong.world_size} ...${text("gpus")} />
      </div>
      ${Number(question.gpus) > 1 &&
      html`<${Several} label="Strategy" choices=${STRATEGIES} problem=${wrong["training/parallel"]} value=${question.parallel}
        hint="tick several to compare; default ddp" onChange=${(parallel) => change({ parallel })} />`}
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
