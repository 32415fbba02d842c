// A step: asks for its events, and shows them with what came of them. Without a question, a fit or a snapshot, asks for a snapshot.

import { html, useEffect, useState } from "../preact.js";
import { Steps } from "./data.js";
import { comparison, ofFit, ofQuestion, ofRun, ofSnapshot } from "./load.js";
import { Step } from "./step.js";
import { Comparison, ProbeVerdict, ReplayVerdict } from "./verdict.js";

/** A file input that is a place to drop a file too. */
function Drop({ onFile, name }) {
  const [isOver, setOver] = useState(false);
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    const [file] = event.dataTransfer.files;
    if (file) onFile(file);
  };
  return html`<div class="step-drop ${isOver ? "over" : ""}"
    onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
    onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <label for="step-file">A memory snapshot of PyTorch (<code>torch.cuda.memory._dump_snapshot</code>), or a trace</label>
    <input id="step-file" type="file" onChange=${(event) => event.target.files[0] && onFile(event.target.files[0])} />
    <p>${name ? `Shown: ${name}` : "Choose it, or drop it here."} It goes to this service, which does not execute or keep it.</p>
  </div>`;
}

/** What a recording is replayed under, instead of what it was recorded under. */
function Conditions({ asked, onAsk }) {
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    onAsk({ memory_limit: form.get("memory_limit").trim(), allocator: form.get("allocator").trim() });
  };
  return html`<form class="step-conditions" onSubmit=${submit}>
    <label>Limit <input name="memory_limit" placeholder="as recorded" defaultValue=${asked.memory_limit} size="10" /></label>
    <label>Allocator <input name="allocator" placeholder="as recorded" defaultValue=${asked.allocator} size="28" /></label>
    <button type="submit">Replay under these</button>
  </form>`;
}

/** Shows the step of a `question` (a request document with a batch), of a stored fit or run, or of a `snapshot`, a file. */
export default function StepView({ question, fitId, runId, snapshot }) {
  const [dropped, setDropped] = useState(null);
  const [asked, setAsked] = useState({});
  const [loaded, setLoaded] = useState(null);
  const [compared, setCompared] = useState(null);
  const [failure, setFailure] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const file = dropped ?? snapshot ?? null;
  const named = question ? JSON.stringify(question) : "";
  const isNamed = question || fitId || runId;
  useEffect(() => {
    const stop = new AbortController();
    const load = async () => {
      setFailure(null);
      setCompared(null);
      if (!file && !isNamed) return;
      setBusy(true);
      try {
        let answer;
        if (file) answer = await ofSnapshot(file, asked, stop.signal);
        else if (runId) answer = await ofRun(runId, stop.signal);
        else if (fitId) answer = await ofFit(fitId, stop.signal);
        else answer = await ofQuestion(question, stop.signal);
        if (!answer.report.events) throw new Error("the service told no events; is it of an older version?");
        setLoaded({ ...answer, steps: new Steps(answer.report.events) });
        setBusy(false);
        if (file) setCompared(await comparison(file, asked, stop.signal));
      } catch (error) {
        if (stop.signal.aborted) return;
        setFailure(error.message);
        setBusy(false);
      }
    };
    load();
    return () => stop.abort();
  }, [file, fitId, runId, named, asked]);
  const isReplay = loaded?.kind === "replay";
  const pick = (chosen) => {
    setAsked({});
    setLoaded(null);
    setDropped(chosen);
  };
  const report = loaded?.report;
  return html`<div class="step" aria-busy=${isBusy}>
    ${(file || !isNamed) && html`<${Drop} onFile=${pick} name=${file?.name} />`}
    <p role="status" class="step-busy">${isBusy && (file ? "Replaying…" : runId ? "Loading…" : "Simulating the step…")}</p>
    ${failure && html`<p role="alert" class="step-failure">${failure}</p>`}
    ${loaded && html`
      ${isReplay ? html`<${ReplayVerdict} report=${report} />` : html`<${ProbeVerdict} report=${report} />`}
      <${Step} key=${loaded.steps} steps=${loaded.steps} limit=${report.limit_bytes ?? null} />
      ${file && html`<section aria-labelledby="step-settings">
        <h2 id="step-settings">Other settings of the allocator</h2>
        <${Conditions} asked=${asked} onAsk=${setAsked} />
        ${compared ? html`<${Comparison} comparison=${compared} used=${report.allocator} />`
          : html`<p role="status">${!failure && "Comparing: the recording is replayed some hundred times…"}</p>`}
      </section>`}
    `}
  </div>`;
}
