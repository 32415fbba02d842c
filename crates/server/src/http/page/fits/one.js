// One fit under a link of its own: how it goes on, and what came of it.
import { html, useEffect, useState } from "../preact.js";
import { Problem, api, follow, isFinal } from "../client.js";
import { address, ofRequest } from "../question.js";
import { moment, progressText } from "../format.js";
import { Answer, modelName } from "../answer/view.js";

/** The fit with this id, followed until it has ended: `{ fit, progress, problem }`. None where there is no id. */
export function useFit(id) {
  const [now, setNow] = useState({});
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    setNow({});
    if (!id) return undefined;
    const path = `/v1/fits/${encodeURIComponent(id)}`;
    const run = async () => {
      const first = await api(path, { signal });
      setNow({ fit: first });
      if (isFinal(first.state)) return;
      await follow(`${path}/events`, {
        signal,
        onEvent({ event, data }) {
          if (event === "result") setNow({ fit: data });
          else if (event === "probe") setNow((before) => ({ ...before, progress: data }));
          // That it has ended comes again with what came of it.
          else if (!isFinal(data.state)) setNow((before) => ({ ...before, fit: { ...before.fit, state: data.state } }));
          return event === "result";
        },
      });
    };
    run().catch((problem) => {
      if (signal.aborted) return;
      setNow({ problem: problem instanceof Problem ? problem.message : String(problem) });
    });
    return () => controller.abort();
  }, [id]);
  return now;
}

/** The link that asks the question of a fit again; null where the question names what an address cannot hold. */
export function again(fit) {
  try {
    const link = address(ofRequest(fit.request));
    return link.length < 16_000 ? `#/?${link}` : null;
  } catch {
    return null;
  }
}

export default function OneView({ parts }) {
  const id = parts[0] ?? "";
  const { fit, progress, problem } = useFit(id);
  if (problem) return html`<p class="problem" role="alert">${problem}</p>`;
  if (!fit) return html`<p role="status">Loading …</p>`;
  const link = again(fit);
  const actions = html`<p class="links">
    ${link && html`<a href=${link}>Change this question</a>`}
    <a href=${`#/compare/${encodeURIComponent(id)}`}>Compare with another</a>
    ${fit.result?.recommendation.micro_batch > 0 && html`<a href=${`#/step/fit/${encodeURIComponent(id)}`}>The step</a>`}
    <a href=${`/v1/fits/${encodeURIComponent(id)}`}>JSON</a>
  </p>`;
  if (fit.state === "done") {
    return html`<h1>Answer of ${moment(fit.finished_at)}</h1>
      ${actions}
      <${Answer} fit=${fit} key=${id} />`;
  }
  return html`<h1>${modelName(fit.request)}: ${fit.state}</h1>
    <p role="status">${progress ? progressText(progress) : ""}</p>
    ${fit.error && html`<p class="problem" role="alert">${fit.error.detail}</p>`}
    ${actions}`;
}
