// Batches against what PyTorch reserves: the simulated line, what was measured over it, and where retries and out of memory begin.
import { html, useEffect, useRef, useState } from "../preact.js";
import { api } from "../client.js";
import { bytes, steady, words } from "../format.js";

/** So many batches more are simulated, so that the line is one. */
const MORE = 10;
/** Fits that took longer than this are of models whose probes would take the service as long again. */
const QUICK_MS = 5000;
/** How far beyond the largest batch the line goes. */
const BEYOND = 1.25;
const HEIGHT = 280;
const GIB = 2 ** 30;

/** What is known of the recommended variant, by batch: a measurement in the place of a simulation of the same batch. */
export function points(probes) {
  const simulated = new Map();
  const measured = new Map();
  for (const probe of probes) {
    if (probe.variant) continue;
    (probe.evidence === "simulated" ? simulated : measured).set(probe.batch, probe);
  }
  return { simulated, measured };
}

/** Batches between one and a little more than the largest that are not simulated yet, evenly spread. */
export function missing(best, known) {
  const last = Math.max(2, Math.ceil(best.max_batch * BEYOND));
  const wanted = new Set();
  for (let step = 0; step <= MORE; step += 1) wanted.add(Math.max(1, Math.round((last * step) / MORE)));
  return [...wanted].filter((batch) => !known.has(batch));
}

/** The request of a probe of the recommended variant. */
function probeOf(fit, batch) {
  const { model, device, memory_limit: limit, allocator, world_size: ranks, unknown_ops: ops, chosen_percent: chosen } = fit.request;
  const training = { ...fit.result.variants[0].training, accumulation: fit.result.recommendation.accumulation_steps };
  const all = { model, training, device, memory_limit: limit, allocator, world_size: ranks, unknown_ops: ops, chosen_percent: chosen, batch };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined && value !== null));
}

/** Whether more batches may be simulated: of a simulated card, one model of one size, and soon. */
function mayAskMore(fit) {
  const { result, request } = fit;
  const took = Date.parse(fit.finished_at) - Date.parse(fit.started_at);
  const isPlain = typeof request.device === "string" && request.device.startsWith("sim:") && !result.lengths && !request.model?.recorded;
  return isPlain && result.recommendation.max_batch > 0 && took < QUICK_MS;
}

/** The probes of a fit, and then some more, one after the other. */
function useProbes(fit) {
  const [probes, setProbes] = useState(fit.result.probes);
  useEffect(() => {
    setProbes(fit.result.probes);
    if (!mayAskMore(fit)) return undefined;
    const controller = new AbortController();
    const more = async () => {
      const known = points(fit.result.probes).simulated;
      const found = [];
      for (const batch of missing(fit.result.recommendation, known)) {
        const { verdict, evidence, peak_reserved_bytes: reserved, retries } = await api("/v1/probes", {
          method: "POST",
          json: probeOf(fit, batch),
          signal: controller.signal,
        });
        found.push({ variant: 0, batch, verdict, evidence, peak_reserved_bytes: reserved, retries });
      }
      setProbes([...fit.result.probes, ...found]);
    };
    // Without them the line has fewer points; the answer is the same.
    more().catch(() => {});
    return () => controller.abort();
  }, [fit.id]);
  return probes;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The zones behind the curve: from the first batch that retries in later steps, and from the first without room. */
function zones(best, last) {
  const [plain, most] = [steady(best), best.max_batch];
  const all = [];
  if (most > plain) all.push({ from: plain, to: Math.min(most, last), color: color("--retries"), text: "retries" });
  if (last > most) all.push({ from: Math.max(most, plain), to: last, color: color("--oom"), text: "out of memory" });
  return all;
}

function drawZones(chart, best, last) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  for (const zone of zones(best, last)) {
    const from = chart.valToPos(zone.from, "x", true);
    const to = chart.valToPos(zone.to, "x", true);
    ctx.fillStyle = zone.color;
    ctx.fillRect(from, bbox.top, to - from, bbox.height);
    ctx.fillStyle = color("--ink");
    if (ctx.measureText(zone.text).width < to - from) ctx.fillText(zone.text, from + 4 * devicePixelRatio, bbox.top + 14 * devicePixelRatio);
  }
  ctx.restore();
}

const size = (known, batch) => (known.has(batch) ? known.get(batch).peak_reserved_bytes / GIB : null);

/** What uPlot draws: batches, the simulated line, the limit, and what was measured where anything was. */
function series(probes, best) {
  const { simulated, measured } = points(probes);
  const batches = [...new Set([...simulated.keys(), ...measured.keys()])].toSorted((one, other) => one - other);
  const data = [batches, batches.map((batch) => size(simulated, batch)), batches.map(() => best.limit_bytes / GIB)];
  if (measured.size > 0) data.push(batches.map((batch) => size(measured, batch)));
  return data;
}

function options(width, best, data) {
  const last = data[0].at(-1);
  const ink = color("--ink");
  const grid = { stroke: color("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid };
  return {
    width,
    height: HEIGHT,
    scales: { x: { time: false, range: [0, last] }, y: { range: [0, (best.limit_bytes / GIB) * 1.1] } },
    cursor: { drag: { x: false, y: false } },
    axes: [
      { ...axis, label: "batch" },
      { ...axis, label: "reserved, GiB" },
    ],
    series: [
      { label: "batch", value: (_chart, value) => value ?? "" },
      { label: "simulated", stroke: color("--accent"), width: 2, spanGaps: true, points: { show: true, size: 6 }, value: shown },
      { label: "limit", stroke: color("--limit"), width: 1, dash: [6, 4], points: { show: false }, value: shown },
      { label: "measured", stroke: color("--measured"), paths: () => null, points: { show: true, size: 10, width: 2 }, value: shown },
    ].slice(0, data.length),
    hooks: { drawClear: [(chart) => drawZones(chart, best, last)] },
  };
}

const shown = (_chart, value) => (value === null || value === undefined ? "" : `${value.toFixed(2)} GiB`);

/** The chart, drawn again when its room or the colours change. */
function Chart({ probes, best }) {
  const place = useRef(null);
  useEffect(() => {
    const drawn = series(probes, best);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let chart = null;
    let gone = false;
    let Plot = null;
    const draw = () => {
      if (gone || !Plot) return;
      chart?.destroy();
      chart = new Plot(options(Math.max(240, place.current.clientWidth), best, drawn), drawn, place.current);
    };
    const resized = new ResizeObserver(() => {
      if (chart) chart.setSize({ width: Math.max(240, place.current.clientWidth), height: HEIGHT });
    });
    const load = async () => {
      Plot = (await import("../vendor/uplot.js")).default;
      draw();
      if (!gone) resized.observe(place.current);
    };
    load();
    dark.addEventListener("change", draw);
    return () => {
      gone = true;
      resized.disconnect();
      dark.removeEventListener("change", draw);
      chart?.destroy();
    };
  }, [probes]);
  return html`<div class="chart" ref=${place} aria-hidden="true"></div>`;
}

export function Curve({ fit }) {
  const probes = useProbes(fit);
  const best = fit.result.recommendation;
  const own = probes.filter((probe) => !probe.variant).toSorted((one, other) => one.batch - other.batch);
  if (own.length < 2 || fit.result.lengths) return null;
  return html`<section aria-label="Batches and memory">
    <h3>Batches and memory</h3>
    <${Chart} probes=${probes} best=${best} />
    <details>
      <summary>The same as a table</summary>
      <div class="wide" tabindex="0" role="region" aria-label="Batches and memory as a table"><table>
        <thead><tr><th scope="col" class="n">batch</th><th scope="col" class="n">peak reserved</th><th scope="col">verdict</th>
          <th scope="col" class="n">retries</th><th scope="col">evidence</th></tr></thead>
        <tbody>${own.map(
          (probe) => html`<tr><td class="n">${probe.batch}</td><td class="n">${bytes(probe.peak_reserved_bytes)}</td>
            <td>${words(probe.verdict)}</td><td class="n">${probe.retries}</td><td>${probe.evidence}</td></tr>`,
        )}</tbody>
      </table></div>
    </details>
  </section>`;
}
