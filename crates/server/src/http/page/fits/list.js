// All fits: what waits and runs, and what has ended, live.
import { html, useCallback, useEffect, useRef, useState } from "../preact.js";
import { Problem, api, follow } from "../client.js";
import { bytes, moment, shortened, variantName } from "../format.js";

const STATES = ["queued", "running", "done", "failed", "cancelled"];
/** Changes that come together are read together. */
const TOGETHER_MS = 150;
const LIMIT = 50;
/** As many recommendations as the service gives at once. */
const MOST_RECOMMENDED = 500;

/** What tells a fit from others of its model and card, as far as it is answered: how it trains, on how many GPUs, within which limit. */
function told(best) {
  if (!best) return "";
  const gpus = best.world_size > 1 ? [`${best.world_size} GPUs`] : [];
  const steps = best.accumulation_steps > 1 ? [`${best.accumulation_steps} steps`] : [];
  return [variantName(best), ...gpus, `limit ${bytes(best.limit_bytes)}`, ...steps].join(", ");
}

/** Pages of fits in a state (or in any), read again whenever something changes. */
function useFits(state) {
  const [now, setNow] = useState({ items: [], next: null, problem: "" });
  const pages = useRef(1);
  const read = useCallback(
    async (signal) => {
      let items = [];
      let next = null;
      for (let page = 0; page < pages.current; page += 1) {
        const query = new URLSearchParams({ limit: String(LIMIT) });
        if (state) query.set("state", state);
        if (next) query.set("cursor", next);
        const answer = await api(`/v1/fits?${query}`, { signal });
        items = [...items, ...answer.items];
        next = answer.next;
        if (!next) break;
      }
      const best = await api(`/v1/recommendations?limit=${MOST_RECOMMENDED}`, { signal });
      const recommended = new Map(best.items.filter(({ rank }) => rank === 1).map((one) => [one.fit_id, one]));
      items = items.map((fit) => ({ ...fit, told: told(recommended.get(fit.id)) }));
      if (!signal.aborted) setNow({ items, next, problem: "" });
    },
    [state],
  );
  const reading = useRef(() => {});
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    let timer = 0;
    const fail = (problem) => {
      if (!signal.aborted) setNow((before) => ({ ...before, problem: problem instanceof Problem ? problem.message : String(problem) }));
    };
    const soon = () => {
      clearTimeout(timer);
      timer = setTimeout(() => read(signal).catch(fail), TOGETHER_MS);
    };
    reading.current = soon;
    pages.current = 1;
    follow("/v1/events", { signal, onEvent: () => soon() }).catch(fail);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [read]);
  const more = () => {
    pages.current += 1;
    reading.current();
  };
  return { ...now, more, again: () => reading.current() };
}

function Row({ fit, chosen, choose, cancel }) {
  const name = shortened(fit.model, 80);
  const open = fit.state === "queued" || fit.state === "running";
  const answer = fit.micro_batch === null ? "" : fit.micro_batch || "nothing fits";
  return html`<tr>
    <td><input type="checkbox" aria-label=${`Compare ${name}, ${fit.id}`} checked=${chosen} disabled=${fit.state !== "done"} onChange=${choose} /></td>
    <td class="n">${answer}</td>
    <td class="name"><a href=${`#/fit/${encodeURIComponent(fit.id)}`}>${name}</a>${fit.told && html`<br /><small>${fit.told}</small>`}</td>
    <td>${shortened(fit.device, 60)}</td>
    <td><span class=${`state s-${fit.state}`}>${fit.state}</span></td>
    <td>${moment(fit.created_at)}</td>
    <td>${open && html`<button type="button" class="quiet" aria-label=${`Cancel ${name}, ${fit.id}`} onClick=${cancel}>Cancel</button>`}</td>
  </tr>`;
}

function setParameters(news) {
  const parameters = new URLSearchParams(location.hash.split("?")[1] ?? "");
  for (const [name, value] of Object.entries(news)) {
    if (value) parameters.set(name, value);
    else parameters.delete(name);
  }
  const query = parameters.toString();
  history.replaceState(null, "", query ? `#/fits?${query}` : "#/fits");
  window.dispatchEvent(new Event("popstate"));
}

export default function ListView({ parameters }) {
  const state = STATES.includes(parameters.get("state")) ? parameters.get("state") : "";
  const text = parameters.get("text") ?? "";
  const { items, next, problem, more, again } = useFits(state);
  const [chosen, setChosen] = useState([]);
  const [failure, setFailure] = useState("");
  const needle = text.trim().toLowerCase();
  const shown = items.filter(({ id, model, device }) => !needle || `${id} ${model} ${device}`.toLowerCase().includes(needle));
  const choose = (id) => setChosen((before) => (before.includes(id) ? before.filter((other) => other !== id) : [...before, id].slice(-2)));
  const cancel = (id) => {
    setFailure("");
    api(`/v1/fits/${encodeURIComponent(id)}`, { method: "DELETE" }).then(again, (error) => setFailure(error.message));
  };
  const count = (which) => items.filter((fit) => fit.state === which).length;
  return html`<h1>Fits</h1>
    <form class="filter" onSubmit=${(event) => event.preventDefault()}>
      <label>State <select value=${state} onChange=${(event) => setParameters({ state: event.target.value })}>
        <option value="" selected=${!state}>any</option>
        ${STATES.map((name) => html`<option value=${name} selected=${name === state}>${name}</option>`)}
      </select></label>
      <label>Model or card <input type="search" value=${text} onInput=${(event) => setParameters({ text: event.target.value })} /></label>
      <a class=${chosen.length === 2 ? "button" : "button off"} aria-disabled=${chosen.length === 2 ? undefined : "true"}
        href=${chosen.length === 2 ? `#/compare/${chosen.map(encodeURIComponent).join("/")}` : undefined}>Compare two</a>
    </form>
    ${(problem || failure) && html`<p class="problem" role="alert">${failure || problem}</p>`}
    <p role="status">${shown.length} shown: ${count("running")} running, ${count("queued")} waiting</p>
    <div class="wide" tabindex="0" role="region" aria-label="Fits"><table class="fits">
      <thead><tr><th scope="col"><span class="unseen">compare</span></th><th scope="col" class="n">batch</th><th scope="col">model</th>
        <th scope="col">card</th><th scope="col">state</th><th scope="col">asked</th><th scope="col"><span class="unseen">cancel</span></th></tr></thead>
      <tbody>${shown.map(
        (fit) => html`<${Row} key=${fit.id} fit=${fit} chosen=${chosen.includes(fit.id)} choose=${() => choose(fit.id)} cancel=${() => cancel(fit.id)} />`,
      )}</tbody>
    </table></div>
    ${next && html`<button type="button" onClick=${more}>Older ones</button>`}`;
}
