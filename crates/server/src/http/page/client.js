// The service's REST API: keys, problem documents, and events as streams.
//
// The key is in sessionStorage: it is gone when the tab is, and no other site and no later visitor of this browser has it.
// Events are read with fetch, because EventSource cannot send a key.
const PLACE = "batchfit-key";
const listeners = new Set();

/** Whether a fit has ended. */
export function isFinal(state) {
  return state === "done" || state === "failed" || state === "cancelled";
}

/** An error that the service explains, or that says why it could not be asked. */
export class Problem extends Error {
  /** `document` is a problem document (RFC 9457), or as much of one as there is. */
  constructor(document) {
    super(document.detail || document.title || "the service did not answer");
    this.name = "Problem";
    this.document = document;
    this.status = document.status ?? 0;
  }
}

export function key() {
  return sessionStorage.getItem(PLACE) ?? "";
}

export function setKey(value) {
  if (value) sessionStorage.setItem(PLACE, value);
  else sessionStorage.removeItem(PLACE);
  for (const listener of listeners) listener({ needed: false });
}

/** Tells `listener` when the service asks for a key or one was given; gives back how to end that. */
export function onKey(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

async function send(path, { method = "GET", body, headers = {}, signal, keepalive } = {}) {
  const all = new Headers(headers);
  if (key()) all.set("authorization", `Bearer ${key()}`);
  const asked = { method, body, headers: all, signal, keepalive };
  let answer;
  try {
    answer = await fetch(path, asked);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "The service does not answer", detail: "The service does not answer. Is it running?" });
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) for (const listener of listeners) listener({ needed: true });
  throw new Problem({ status: answer.status, title: answer.statusText, ...problem });
}

/** What the service answers with JSON. `json` is sent as a body. */
export async function api(path, { json, ...options } = {}) {
  const body = json === undefined ? options.body : JSON.stringify(json);
  const answer = await send(path, { ...options, body });
  return answer.status === 204 ? null : answer.json();
}

/** What the service answers with JSON, and when by its own clock, in milliseconds and to the second. */
export async function dated(path, options) {
  const answer = await send(path, options);
  return { document: await answer.json(), at: Date.parse(answer.headers.get("date") ?? "") || Date.now() };
}

/** What the service answers with text. */
export async function text(path, options) {
  return (await send(path, options)).text();
}

/** The events in what has arrived of a stream, and what is left of it. */
export function split(buffer) {
  const blocks = buffer.split("\n\n");
  const rest = blocks.pop();
  const events = [];
  for (const block of blocks) {
    const event = { event: "message", data: "", id: null };
    for (const line of block.split("\n")) {
      const at = line.indexOf(":");
      const name = line.slice(0, at < 0 ? line.length : at);
      if (name === "data" || name === "event" || name === "id") event[name] = line.slice(at + 1).trimStart();
    }
    if (event.data) events.push({ ...event, data: JSON.parse(event.data) });
  }
  return { events, rest };
}

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });

/**
 * Calls `onEvent` with each Server-Sent Event of a path until `signal` aborts, the service says that there are no more (204), or
 * `onEvent` gives back true. Where the connection ends before, it asks again from the last event on.
 */
export async function follow(path, { signal, onEvent }) {
  let last = null;
  while (!signal?.aborted) {
    try {
      const headers = last === null ? {} : { "last-event-id": last };
      const answer = await send(path, { headers, signal });
      if (answer.status === 204) return;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let buffer = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const { events, rest } = split(buffer + value);
        buffer = rest;
        for (const event of events) {
          last = event.id ?? last;
          if (onEvent(event) === true) {
            await reader.cancel();
            return;
          }
        }
      }
    } catch (error) {
      if (signal?.aborted || error.name === "AbortError") return;
      // What the service refuses will be refused again; a connection may come back.
      if (error instanceof Problem && error.status > 0 && error.status !== 503) throw error;
    }
    await pause(1000, signal);
  }
}
