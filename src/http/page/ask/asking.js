// Asks as somebody types: one fit at a time, for the question as it is now. An outdated one is cancelled where it was queued for us.
import { useEffect, useState } from "../preact.js";
import { Problem, api, follow } from "../client.js";

/** So long after the last change a question is asked. */
const PAUSE_MS = 400;
/** A fit that is so much older than our request was asked by somebody else, and is not ours to cancel. */
const OURS_MS = 2500;

/** Whether a fit was queued by a request that was sent at `sent` by the clock of this machine, not found. */
function isOurs(fit, sent) {
  return fit.state !== "done" && Date.parse(fit.created_at) > sent - OURS_MS;
}

function cancel(id) {
  // It may have ended meanwhile, or the tab is about to close.
  api(`/v1/fits/${encodeURIComponent(id)}`, { method: "DELETE", keepalive: true }).catch(() => {});
}

async function ask(body, signal, tell) {
  const sent = Date.now();
  // Not aborted: the service would queue the fit, and nobody would know its name.
  let fit = await api("/v1/fits", { method: "POST", body, headers: { "content-type": "application/json" } });
  const ours = isOurs(fit, sent);
  const giveUp = () => ours && cancel(fit.id);
  if (signal.aborted) return giveUp();
  if (["done", "failed", "cancelled"].includes(fit.state)) return tell({ phase: fit.state, fit });
  tell({ phase: fit.state, fit });
  signal.addEventListener("abort", () => !["done", "failed", "cancelled"].includes(fit.state) && giveUp());
  await follow(`/v1/fits/${encodeURIComponent(fit.id)}/events`, {
    signal,
    onEvent({ event, data }) {
      if (signal.aborted) return true;
      if (event === "state") fit = { ...fit, state: data.state };
      if (event === "probe") tell({ phase: "running", fit, progress: data });
      else if (event === "result") {
        fit = data;
        tell({ phase: fit.state, fit });
        return true;
      } else tell({ phase: fit.state, fit });
      return false;
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
