// A question: what the form holds, as an address (so that a link asks it again) and as a request of the API.

/** Members of a question that are lists of words. */
export const LISTS = ["precision", "optimizer", "checkpointing", "parallel"];
/** Members that are text. `more` is JSON: what the form has no field for. */
const TEXTS = ["model", "source", "label", "device", "limit", "target", "accumulation", "objective", "suggest", "soak", "lora", "gpus", "more"];
/** Members beside the model that an address may have, and how they begin there. */
const SIZE = "size.";
/** The longest address that browsers and proxies pass on without trouble. */
export const LONGEST = 16_000;

export const EMPTY = { ...Object.fromEntries(TEXTS.map((name) => [name, ""])), ...Object.fromEntries(LISTS.map((name) => [name, []])), sizes: {} };

/** The question in an address. What it does not know is left out. */
export function read(parameters) {
  const question = { ...EMPTY, sizes: {} };
  for (const name of TEXTS) question[name] = parameters.get(name) ?? "";
  for (const name of LISTS) question[name] = (parameters.get(name) ?? "").split(",").filter(Boolean);
  for (const [name, value] of parameters) {
    const size = name.startsWith(SIZE) ? name.slice(SIZE.length) : "";
    if (/^[a-z_]{1,40}$/.test(size)) question.sizes[size] = value;
  }
  return question;
}

/** The address of a question, without what is empty. */
export function address(question) {
  const parameters = new URLSearchParams();
  for (const name of TEXTS) if (question[name]) parameters.set(name, question[name]);
  for (const name of LISTS) if (question[name].length > 0) parameters.set(name, question[name].join(","));
  for (const [name, value] of Object.entries(question.sizes)) if (value) parameters.set(SIZE + name, value);
  return parameters.toString();
}

export function hasModel(question) {
  return Boolean(question.model.trim() || question.source);
}

const isWhole = (text) => /^[0-9]{1,15}$/.test(text.trim());
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Puts a JSON merge patch (RFC 7396) into a document. */
export function merge(document, patch) {
  if (!isObject(patch)) return patch;
  const merged = isObject(document) ? { ...document } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete merged[name];
    else merged[name] = merge(merged[name], value);
  }
  return merged;
}

/** One word, or a list of several: each combination is asked about. */
const oneOrMany = (words) => (words.length === 1 ? words[0] : words);

/**
 * The request that a question is. What is wrong with its words and numbers is for the service to say; only JSON that cannot be read
 * throws, a SyntaxError.
 */
export function request(question) {
  const model = question.source ? JSON.parse(question.source) : { preset: question.model.trim() };
  const lengths = {};
  for (const [name, given] of Object.entries(question.sizes)) {
    const value = given.trim();
    if (!value) continue;
    if (name === "batches") model[name] = value.split(",").map(numberOr);
    else if (isWhole(value)) model[name] = Number(value);
    else if (name === "seq_len" || name === "image_size") lengths[name] = value;
    else model[name] = value;
  }
  if (question.lora.trim()) model.lora = loraOf(question.lora);
  const training = {};
  for (const name of LISTS) if (question[name].length > 0) training[name] = oneOrMany(question[name]);
  if (question.accumulation.trim()) training.accumulation = numberOr(question.accumulation);
  const asked = { model };
  if (Object.keys(training).length > 0) asked.training = training;
  if (Object.keys(lengths).length > 0) asked.lengths = lengths;
  if (question.device) asked.device = question.device;
  if (question.gpus.trim()) asked.world_size = numberOr(question.gpus);
  if (question.limit.trim()) asked.memory_limit = question.limit.trim();
  if (question.target.trim()) asked.target_batch = numberOr(question.target);
  if (question.objective) asked.objective = question.objective;
  if (question.suggest) asked.suggest = isWhole(question.suggest) ? Number(question.suggest) : true;
  if (question.soak) asked.soak = { steps: numberOr(question.soak) };
  return question.more.trim() ? merge(asked, JSON.parse(question.more)) : asked;
}

const numberOr = (text) => (isWhole(text) ? Number(text) : text.trim());

/** A rank of LoRA, and whether it is on all linear layers or on PEFT's usual ones. */
const ALL_LINEAR = " on all linear layers";
const loraOf = (text) => (text.trim().endsWith(ALL_LINEAR) ? { r: numberOr(text.replace(ALL_LINEAR, "")), target_modules: "all-linear" } : { r: numberOr(text) });

const listOf = (value) => (value === undefined ? [] : Array.isArray(value) ? value : [value]);

/** The question that a request asks: what the form has no field for goes into `more`. */
export function ofRequest(asked) {
  const question = { ...EMPTY, sizes: {} };
  const more = structuredClone(asked);
  const take = (name, put) => {
    if (more[name] === undefined || more[name] === null) return;
    put(more[name]);
    delete more[name];
  };
  delete more.priority;
  take("model", (model) => readModel(question, model));
  for (const name of LISTS) {
    const words = listOf(more.training?.[name]);
    if (words.length > 0 && words.every((word) => typeof word === "string")) {
      question[name] = words;
      delete more.training[name];
    }
  }
  if (more.training?.accumulation !== undefined) {
    question.accumulation = String(more.training.accumulation);
    delete more.training.accumulation;
  }
  if (more.training && Object.keys(more.training).length === 0) delete more.training;
  for (const name of ["seq_len", "image_size"]) {
    if (typeof more.lengths?.[name] === "string") {
      question.sizes[name] = more.lengths[name];
      delete more.lengths[name];
    }
  }
  if (more.lengths && Object.keys(more.lengths).length === 0) delete more.lengths;
  if (typeof more.device === "string") take("device", (device) => (question.device = device));
  if (Number.isInteger(more.world_size)) take("world_size", (count) => (question.gpus = String(count)));
  take("memory_limit", (limit) => (question.limit = String(limit)));
  take("target_batch", (target) => (question.target = String(target)));
  take("objective", (objective) => (question.objective = String(objective)));
  take("suggest", (suggest) => (question.suggest = suggest === false ? "" : suggest === true ? "yes" : String(suggest)));
  if (isObject(more.soak) && Object.keys(more.soak).every((name) => name === "steps")) {
    take("soak", (soak) => (question.soak = String(soak.steps ?? 1000)));
  }
  if (Object.keys(more).length > 0) question.more = JSON.stringify(more, null, 1);
  return question;
}

function readModel(question, model) {
  const rest = { ...model };
  for (const name of ["seq_len", "image_size", "num_classes", "in_channels", "target_len", "loss_chunks"]) {
    if (typeof rest[name] === "number") {
      question.sizes[name] = String(rest[name]);
      delete rest[name];
    }
  }
  if (Array.isArray(rest.batches)) {
    question.sizes.batches = rest.batches.join(",");
    delete rest.batches;
  }
  if (isObject(rest.lora) && rest.lora.r) {
    const text = `${rest.lora.r}${rest.lora.target_modules === "all-linear" ? ALL_LINEAR : ""}`;
    if (JSON.stringify(merge(rest.lora, loraOf(text))) === JSON.stringify(rest.lora) && Object.keys(rest.lora).length === Object.keys(loraOf(text)).length) {
      question.lora = text;
      delete rest.lora;
    }
  }
  if (typeof rest.preset === "string" && Object.keys(rest).length === 1) {
    question.model = rest.preset;
    return;
  }
  question.source = JSON.stringify(rest);
  question.label = labelOf(rest);
}

/** What a person may call a model that is no preset. */
export function labelOf(model) {
  if (model.hf) return `config of ${model.hf._name_or_path || model.hf.model_type || "a model"}`;
  if (model.exported) return typeof model.exported === "string" ? `graph ${model.exported.slice(0, 19)}…` : "a graph";
  if (model.recorded) return `${listOf(model.recorded).length} recordings`;
  if (model.layers) return `${model.layers.length} layers`;
  return model.preset ?? "a model";
}
