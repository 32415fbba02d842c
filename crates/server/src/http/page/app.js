// Where the page begins: the bar with links to the views, and the view that the address names. Addresses are in the part after
// `#`, which the browser keeps to itself: `#/?model=…` a question, `#/fit/ID` an answer, `#/fits` all of them.
import { html, render, useEffect, useErrorBoundary, useState } from "./preact.js";
import { key, onKey, setKey } from "./client.js";
import { shortened } from "./format.js";
import { AskView } from "./ask/view.js";

/** Views that are loaded when somebody looks at them: so the first one is there sooner. */
const LATER = {
  fit: () => import("./fits/one.js"),
  fits: () => import("./fits/list.js"),
  compare: () => import("./fits/compare.js"),
  run: () => import("./runs/one.js"),
  runs: () => import("./runs/list.js"),
  service: () => import("./service/view.js"),
  step: () => import("./step/page.js"),
};

const VIEWS = [
  ["#/", "Ask"],
  ["#/fits", "Fits"],
  ["#/runs", "Runs"],
  ["#/step", "Snapshot"],
  ["#/service", "Service"],
];

/** The place that the address names: `{ view, parts, parameters }`. */
export function place(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { view, parts, parameters: new URLSearchParams(query) };
}

function usePlace() {
  const [now, setNow] = useState(() => place());
  useEffect(() => {
    const moved = () => setNow(place());
    window.addEventListener("hashchange", moved);
    window.addEventListener("popstate", moved);
    return () => {
      window.removeEventListener("hashchange", moved);
      window.removeEventListener("popstate", moved);
    };
  }, []);
  return now;
}

/** A view that is loaded when it is needed. */
function Later({ name, now }) {
  const [View, setView] = useState(null);
  const [failure, setFailure] = useState("");
  useEffect(() => {
    let current = true;
    setView(null);
    setFailure("");
    LATER[name]().then(
      (module) => current && setView(() => module.default),
      () => current && setFailure("This part of the page could not be loaded. Reload the page: the service may have been updated."),
    );
    return () => (current = false);
  }, [name]);
  if (failure) return html`<p class="problem" role="alert">${failure}</p>`;
  return View ? html`<${View} ...${now} />` : html`<p role="status">Loading …</p>`;
}

function Key() {
  const [needed, setNeeded] = useState(false);
  const [given, setGiven] = useState("");
  const [has, setHas] = useState(Boolean(key()));
  useEffect(
    () =>
      onKey((news) => {
        setNeeded(news.needed);
        setHas(Boolean(key()));
      }),
    [],
  );
  if (!needed) {
    return has ? html`<button type="button" class="quiet" onClick=${() => setKey("")}>Forget the key</button>` : null;
  }
  const submit = (event) => {
    event.preventDefault();
    setKey(given.trim());
    setGiven("");
    // What was refused is asked again.
    window.dispatchEvent(new Event("popstate"));
  };
  return html`<form class="key" onSubmit=${submit}>
    <label>
      ${has ? "This key is not known. Another one:" : "This service asks for a key:"}
      <input type="password" autocomplete="off" required value=${given} onInput=${(event) => setGiven(event.target.value)} />
    </label>
    <button>Use it until this tab is closed</button>
  </form>`;
}

function Shown({ now }) {
  const [error, reset] = useErrorBoundary();
  useEffect(() => reset(), [now]);
  if (error) {
    return html`<div class="problem" role="alert">
      <p>This view cannot be shown: ${String(error.message ?? error)}</p>
    </div>`;
  }
  if (now.view === "") return html`<${AskView} ...${now} />`;
  if (Object.hasOwn(LATER, now.view)) return html`<${Later} name=${now.view} now=${now} key=${now.view} />`;
  return html`<p class="problem">There is no such page. <a href="#/">Ask a question</a>.</p>`;
}

function App() {
  const now = usePlace();
  const [asked, setAsked] = useState(0);
  useEffect(() => onKey(({ needed }) => needed || setAsked((count) => count + 1)), []);
  useEffect(() => {
    const named = now.view === "" ? now.parameters.get("model") : VIEWS.find(([link]) => link === `#/${now.view}`)?.[1] ?? now.view;
    document.title = named ? `${shortened(named, 60)} – batchfit` : "batchfit";
  }, [now]);
  const at = (link) => (link === "#/" ? now.view === "" : link === `#/${now.view}`);
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="bar">
      <strong>batchfit</strong>
      <nav aria-label="Views">
        ${VIEWS.map(([link, name]) => html`<a href=${link} aria-current=${at(link) ? "page" : undefined}>${name}</a>`)}
        <a href="/docs">API</a>
      </nav>
      <${Key} />
    </header>
    <main id="main" tabindex="-1"><${Shown} now=${now} key=${asked} /></main>`;
}

/** `#main` is no place of ours: only the focus moves. */
function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

render(html`<${App} />`, document.getElementById("page"));
