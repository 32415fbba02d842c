// Files that are dropped or chosen: what each is, and the question that comes of it.
import { api } from "../client.js";
import { EMPTY, labelOf, ofRequest } from "../question.js";
import { shortened } from "../format.js";

/** JSON longer than this is a graph: it is sent to the service as it is. A config or a request is some kilobytes. */
const LONGEST_JSON = 256 << 10;

async function json(file) {
  if (file.size > LONGEST_JSON) return null;
  const text = await file.text();
  if (!/^\s*\{/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Asks about a model that is no preset, and keeps the rest of the question. */
function about(question, model, label) {
  return { ...question, model: "", source: JSON.stringify(model), label: shortened(label, 120), sizes: {} };
}

/** The digests of the recordings that a question is about. */
function recordings(question) {
  try {
    const { recorded } = JSON.parse(question.source || "{}");
    return Array.isArray(recorded) ? recorded : [];
  } catch {
    return [];
  }
}

/** The batch of a recording: what the service read in it, or the number in a name such as `b8.pickle`. */
const batchOf = (upload, name) => upload.batch ?? name.match(/(?:^|[^a-z])b(?:atch)?[-_]?([0-9]+)/i)?.[1] ?? "?";

/** Asks about one more recording of the same program. */
function withRecording(question, upload, name) {
  const before = recordings(question);
  if (before.includes(upload.digest)) return question;
  const recorded = [...before, upload.digest];
  const batches = [question.sizes.batches, batchOf(upload, name)].filter(Boolean).join(",");
  const label = recorded.length > 1 ? `${recorded.length} recordings, the last from ${name}` : `recording ${name}`;
  return { ...about(question, { recorded }, label), sizes: { batches } };
}

/**
 * The question after a file was dropped on it: a request replaces it, a model or recording is what it is about now. Several recordings
 * are one program at several batches. Throws a Problem where the service does not know what the file is.
 */
export async function drop(file, question) {
  const document = await json(file);
  if (document?.model !== undefined && typeof document.model === "object") return ofRequest(document);
  if (document && (document.model_type || document.architectures)) {
    const { device, limit, target, precision, optimizer } = question;
    const kept = { ...EMPTY, device, limit, target, precision, optimizer };
    return about(kept, { hf: document }, `${labelOf({ hf: document })} (${file.name})`);
  }
  const upload = await api("/v1/graphs", { method: "POST", body: file, headers: { "content-type": "application/octet-stream" } });
  if (upload.kind === "recorded") return withRecording(question, upload, file.name);
  return about(question, { exported: upload.digest }, `graph ${file.name}`);
}
