// Numbers and times as people read them.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes in the largest unit of which there is one, as the command line writes them: `11.04 GiB`. */
export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  const sign = count < 0 ? "-" : "";
  let size = Math.abs(count);
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : unit < 3 ? 1 : 2;
  return `${sign}${size.toFixed(digits)} ${UNITS[unit]}`;
}

/** A share of one as a percentage. */
export function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

/** A number of some size: three figures, as many as matter. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

/** Milliseconds as people say them. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  return ms < 1000 ? `${number(ms)} ms` : ms < 120_000 ? `${number(ms / 1000)} s` : `${number(ms / 60_000)} min`;
}

/** How far a fit is, by batch where it is at one. */
export function progressText({ batch, note }) {
  return batch ? `Batch ${batch}: ${note}` : note;
}

/** A name of ours (`activation_gradients`) in words. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

/** A moment in the reader's own time. */
export function moment(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? "–" : time.toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}

/** At most so many characters: names come from files and other people. */
export function shortened(text, most = 80) {
  const characters = [...String(text)];
  return characters.length <= most ? characters.join("") : `${characters.slice(0, most - 1).join("")}…`;
}

/** What a person calls a variant: `amp_fp16 adamw, checkpointing per_block`. */
export function variantName(training) {
  const { precision, optimizer, optimizer_impl: impl, checkpointing, parallel } = training;
  const parts = [words(precision), words(optimizer)];
  if (impl === "fused") parts.push("fused");
  if (checkpointing && checkpointing !== "none") {
    const modules = checkpointing.modules;
    parts.push(modules ? `checkpointing of ${shortened(modules.join(", "), 60)}` : `checkpointing ${words(checkpointing)}`);
  }
  if (parallel?.strategy && parallel.strategy !== "none") parts.push(parallel.strategy);
  return parts.join(", ");
}

/** The largest batch that retries in the first two steps at most. Answers of earlier versions tell only of none. */
export const steady = (best) => Math.max(best.max_batch_steady ?? 0, best.max_batch_without_retries);

/** What the form calls what a flag of the command line sets, and how its value begins there. */
const FIELDS = {
  amp: "Precision: amp_", precision: "Precision: ", optimizer: "Optimizer: ", checkpoint: "Checkpointing: ", parallel: "Strategy: ",
  "seq-len": "Sequence length: ", "image-size": "Image size: ", "memory-limit": "Limit: ", target: "Target: ", accumulation: "Accumulation steps: ",
  on: "Card: ", "world-size": "GPUs: ", lora: "LoRA rank: ", objective: "Look for: the best ", suggest: "Say what else would help",
};

const member = (path, value) => `${path.reduceRight((inner, name) => `{"${name}": ${inner}}`, value)} in “Other members of the request”`;
const json = (value) => (/^(true|false|[0-9.]+|[[{].*)$/.test(value) ? value : `"${value}"`);

/** A note in the words of the form: flags are its fields, and those without a field are members of the request. */
export function ofForm(note) {
  return note.replace(/`--([a-z-]+)(?: ([^`]*))?`(?: \(`[a-z_.]+`\))?/g, (flag, name, value = "") => {
    const [, inner, set] = (name === "with" && value.replaceAll("'", "").match(/^([a-z_]+)=(.*)$/)) || [];
    if (inner) return member(["model", inner], json(set));
    if (FIELDS[name] !== undefined) return `“${(FIELDS[name] + value).replace(/: ?$/, "")}”`;
    if (name === "allocator") return member([name], json(value));
    return name === "find-unused-parameters" ? member(["training", "parallel"], `{"strategy": "ddp", "find_unused_parameters": ${value}}`) : flag;
  }).replace(/ \(--[a-z-]+ [^)]*\)/, "");
}
