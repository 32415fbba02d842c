// The service: whether it is well, and which cards it knows.
import { html, useEffect, useState } from "../preact.js";
import { Problem, api } from "../client.js";
import { bytes } from "../format.js";
import { Table } from "../answer/tables.js";

/** Health is looked at so often while somebody looks at it. */
const AGAIN_MS = 10_000;

function useHealth() {
  const [health, setHealth] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    const look = async () => {
      try {
        const alive = await api("/healthz", { signal });
        const ready = await api("/readyz", { signal }).then(
          () => ({ is: true, text: "takes requests" }),
          (problem) => ({ is: false, text: problem.message }),
        );
        setHealth({ is: ready.is, text: `batchfit ${alive.version} ${ready.is ? ready.text : `answers, but: ${ready.text}`}` });
      } catch (problem) {
        if (!signal.aborted) setHealth({ is: false, text: problem.message });
      }
    };
    look();
    const timer = setInterval(look, AGAIN_MS);
    return () => {
      clearInterval(timer);
      controller.abort();
    };
  }, []);
  return health;
}

export default function ServiceView() {
  const health = useHealth();
  const [devices, setDevices] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const controller = new AbortController();
    api("/v1/devices", { signal: controller.signal }).then(
      ({ items }) => setDevices(items),
      (error) => error instanceof Problem && setProblem(error.message),
    );
    return () => controller.abort();
  }, []);
  const rows = (devices ?? []).map(({ device, gpu, usable_bytes: usable, compute_capability: capability, available, missing, source }) => [
    device,
    gpu ?? "–",
    usable ? bytes(usable) : "–",
    capability ?? "–",
    available ? "yes" : `no: ${missing}`,
    source,
  ]);
  return html`<h1>Service</h1>
    <p role="status" class=${health && !health.is ? "problem" : ""}>${health ? health.text : "Asking …"}</p>
    <h2>Cards</h2>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${devices && html`<${Table} label="Cards" rows=${rows} columns=${["device", "card", "#for the allocator", "#compute capability", "here", "memory is from"]} />`}
    <p class="links"><a href="/docs">The API</a><a href="/openapi.yaml">openapi.yaml</a><a href="/metrics">Metrics</a></p>`;
}
