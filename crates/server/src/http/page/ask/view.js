// The question and its answer beside each other: the answer follows as the question changes, and so does the address.
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../preact.js";
import { Problem } from "../client.js";
import { LONGEST, address, hasModel, merge, ofRequest, read, request } from "../question.js";
import { Answer } from "../answer/view.js";
import { shortened, progressText } from "../format.js";
import { useAsking } from "./asking.js";
import { drop } from "./drop.js";
import { Form, meant, useCatalogue } from "./form.js";

const EXAMPLES = [
  ["resnet50 on an RTX 4090", "model=resnet50&device=sim:rtx4090&precision=amp_fp16&optimizer=sgd_momentum&target=512"],
  ["GPT-2 within 16 GiB", "model=gpt2&size.seq_len=1024&device=sim:h200&limit=16GiB&precision=amp_bf16&suggest=yes"],
];

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The JSON of the request, or what is wrong with it and where. */
function written(question) {
  if (!hasModel(question)) return { body: null };
  try {
    // Whoever looks at a page waits for it.
    return { body: JSON.stringify({ ...request(question), priority: "interactive" }) };
  } catch (error) {
    const place = isJson(question.source || "{}") ? "more" : "model";
    return { body: null, wrong: { [place]: `This is no JSON: ${error.message}` } };
  }
}

/** Which member of the question a problem is about: the first words of its JSON pointer. */
function wrongPlaces(problem, wrong) {
  const places = { ...wrong };
  const document = problem?.document;
  if (!document?.pointer) return places;
  places[document.pointer.split("/").slice(1, 3).join("/")] = document.detail;
  return places;
}

export function AskView({ parameters }) {
  const asked = parameters.toString();
  const [question, setQuestion] = useState(() => read(parameters));
  const [failure, setFailure] = useState("");
  const [over, setOver] = useState(false);
  const latest = useRef(question);
  const catalogue = useCatalogue();
  const asking = useMemo(() => meant(question, catalogue), [question, catalogue]);
  latest.current = question;
  // A link names the card, so that it asks the same of another service.
  const linked = useMemo(() => ({ ...question, device: asking.device }), [question, asking]);
  // Back, forward, or a link: the address leads. Otherwise the question does.
  useEffect(() => {
    if (asked !== address(linked)) setQuestion(read(parameters));
  }, [asked]);
  // What is meant is not known before the service says what it has.
  const { body, wrong } = useMemo(() => (catalogue.ready ? written(asking) : { body: null }), [asking, catalogue]);
  const now = useAsking(body);
  useAddress(linked, now.phase);
  const outcome = useRef(null);
  const short = wrong || body ? inShort(now, wrong) : "";
  const see = () => {
    outcome.current.scrollIntoView();
    outcome.current.focus({ preventScroll: true });
  };
  const change = useCallback((news) => setQuestion((before) => ({ ...before, ...news })), []);
  const take = async (files) => {
    setFailure("");
    let current = latest.current;
    for (const file of files) {
      try {
        current = await drop(file, current);
        setQuestion(current);
      } catch (error) {
        const why = error instanceof Problem ? error.message : String(error.message ?? error);
        setFailure(`${shortened(file.name)}: ${why}`);
      }
    }
  };
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    take([...event.dataTransfer.files]);
  };
  const onDragOver = (event) => {
    event.preventDefault();
    setOver(true);
  };
  const apply = (patch) => setQuestion(ofRequest(merge(request(asking), patch)));
  return html`<div class=${over ? "ask over" : "ask"} onDrop=${onDrop} onDragOver=${onDragOver} onDragLeave=${() => setOver(false)}>
    <section class="question" aria-label="Question">
      <h1>What is the largest batch that fits?</h1>
      <${Form} question=${question} change=${change} onAsk=${see} wrong=${wrongPlaces(now.problem, wrong)} onFiles=${take} failure=${failure} catalogue=${catalogue} />
    </section>
    ${short && html`<button form="question" class="at-hand">${short}</button>`}
    <section class="outcome" aria-label="Answer" tabindex="-1" ref=${outcome}>
      <${Status} now=${now} short=${short} hasModel=${hasModel(question)} wrong=${wrong} change=${change} />
      ${now.answered && body && html`<div class=${now.phase === "done" ? "" : "outdated"} aria-busy=${now.phase === "done" ? undefined : "true"}>
        <${Answer} fit=${now.answered} apply=${apply} key=${now.answered.id} />
      </div>`}
    </section>
  </div>`;
}

/** Keeps the question in the address: a change of it that is asked is a step that `back` goes back. */
function useAddress(question, phase) {
  useEffect(() => {
    const wanted = address(question);
    const held = location.hash.replace(/^#\/?\??/, "");
    if (wanted === new URLSearchParams(held).toString() || !/^(#\/?(\?.*)?)?$/.test(location.hash)) return;
    if (wanted.length > LONGEST) return;
    // While somebody types nothing is to go back to.
    if (phase === "waiting") return;
    history.pushState(null, "", wanted ? `#/?${wanted}` : "#/");
  }, [question, phase]);
}

const SAID = {
  waiting: "…",
  queued: "In the queue …",
  running: "Looking for the largest batch …",
  cancelled: "This fit was cancelled. Change the question to ask again.",
};

/** The answer in a few words, for where it is out of sight. */
function inShort({ phase, answered }, wrong) {
  if (wrong || phase === "refused" || phase === "failed") return "No answer: see why";
  if (!answered) return "";
  const batch = answered.result.recommendation.micro_batch;
  return batch ? `Micro-batch ${batch}: see the answer` : "Nothing fits: see why";
}

/** How it stands, told to screen readers as it changes. */
function Status({ now, short, hasModel: asks, wrong, change }) {
  if (!asks) {
    return html`<div class="hint">
      <p>Name a model, or drop a file: a request, an exported graph, a Hugging Face <code>config.json</code>, a recording or a memory snapshot.</p>
      <p>For example ${EXAMPLES.map(([name, link], index) => html`${index > 0 && ", "}<a href=${`#/?${link}`}>${name}</a>`)}.</p>
    </div>`;
  }
  if (wrong) return html`<p class="problem" role="alert">${Object.values(wrong)[0]}</p>`;
  if (now.phase === "refused") return html`<${Refused} problem=${now.problem.document} change=${change} />`;
  if (now.phase === "failed") {
    return html`<p class="problem" role="alert">${now.fit.error?.detail ?? "The fit failed."}</p>`;
  }
  const progress = now.progress;
  const told = progress ? progressText(progress) : SAID[now.phase] ?? "";
  return html`<p class="status" role="status">${now.phase === "done" ? html`<span class="unseen">${short}</span>` : told}</p>`;
}

function Refused({ problem, change }) {
  const nearest = problem.pointer === "/model/preset" && problem.nearest;
  return html`<div class="problem" role="alert">
    <p>${problem.detail ?? problem.title}</p>
    ${nearest && html`<p><button type="button" onClick=${() => change({ model: nearest })}>Ask about ${nearest}</button></p>`}
  </div>`;
}

