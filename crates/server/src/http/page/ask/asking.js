// Asks as somebody types: one fit at a time, for the question as it is now. An outdated one is cancelled where it was queued for us.
import { useEffect, useState } from "../preact.js";
import { Problem, api, dated, follow, isFinal } from "../client.js";

/** So long after the last change a question is asked. */
const PAUSE_MS = 400;
/** What a service's clock is told by is whole seconds, and its answer takes a moment. */
const CLOCK_MS = 1500;

/** Whether a fit was queued by a request that took so long and was answered at `at`. What is older was asked by somebody else. */
function isOurs(fit, at, took) {
  return !isFinal(fit.state) && Date.parse(fit.created_at) > at - took - CLOCK_MS;
}

function cancel(id) {
  // It may have ended meanwhile, or the tab is about to close.
  api(`/v1/fits/${encodeURIComponent(id)}`, { method: "DELETE", keepalive: true }).catch(() => {});
}

async function ask(body, signal, tell) {
  const sent = performance.now();
  // Not aborted: the service would queue the fit, and nobody would know its name.
  const { document, at } = await dated("/v1/fits", { method: "POST", body, headers: { "content-type": "application/json" } });
  let fit = document;
  const ours = isOurs(fit, at, performance.now() - sent);
  const giveUp = () => ours && cancel(fit.id);
  if (signal.aborted) {
    giveUp();
    return;
  }
  tell({ phase: fit.state, fit });
  if (isFinal(fit.state)) return;
  signal.addEventListener("abort", () => isFinal(fit.state) || giveUp());
  await follow(`/v1/fits/${encodeURIComponent(fit.id)}/events`, {
    signal,
    onEvent({ event, data }) {
      if (signal.aborted) return true;
      if (event === "probe") tell({ phase: "running", fit, progress: data });
      if (event === "result") {
        fit = data;
        tell({ phase: fit.state, fit });
      }
      // That it has ended comes again with what came of it.
      if (event === "state") {
        fit = { ...fit, state: data.state };
        if (!isFinal(data.state)) tell({ phase: data.state, fit });
      }
      return event === "result";
    },
  });
}

/**
 * What became of the question `body`, the JSON of a request, or null where there is none: `{ phase, fit, progress, problem, answered }`.
 * `phase` is `idle`, `waiting` (somebody may be typing), `queued`, `running`, `done`, `failed`, `cancelled` or `refused`;
 * `answered` is the last fit that was done, which stays to be read while the next one is asked.
 */
export function useAsking(body) {
  const [now, setNow] = useState({ phase: "idle", answered: null });
  useEffect(() => {
    if (body === null) {
      setNow({ phase: "idle", answered: null });
      return undefined;
    }
    const controller = new AbortController();
    const tell = (news) => {
      if (controller.signal.aborted) return;
      setNow((before) => ({ ...news, answered: news.phase === "done" ? news.fit : before.answered }));
    };
    setNow((before) => ({ phase: "waiting", answered: before.answered }));
    const timer = setTimeout(() => {
      ask(body, controller.signal, tell).catch((problem) => {
        if (!(problem instanceof Problem)) throw problem;
        tell({ phase: "refused", problem });
      });
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [body]);
  return now;
}
