// The timeline and the map of segments with what is said of the moment and of the tensor at the cursor.

import { html, useLayoutEffect, useRef, useState } from "../preact.js";
import { SegmentMap } from "./map.js";
import { Palette } from "./paint.js";
import { Timeline } from "./timeline.js";
import { Legend, Moment, Tables, Tensor, spoken } from "./told.js";

/** How much closer a press of a key or button looks, and a turn of the wheel. */
const CLOSER = 0.5;
/** How long the cursor rests before what is there is read out, in milliseconds. */
const REST = 250;
/** Pixels that a pointer may move in a click. */
const STILL = 4;

const KEYS = "Arrow keys left and right move in time, with Shift further; up and down move among the tensors of the moment. Plus and minus "
  + "zoom, [ and ] zoom the height, 0 shows everything, Home and End go to the ends, P to the peak, A and F to where the tensor is "
  + "allocated and freed. Enter pins the tensor, Escape lets go of it. While the timeline has the focus, the wheel zooms, with Shift the height.";

/** Both pictures of one run. */
export function Step({ steps, limit }) {
  const canvas = useRef(null);
  const mapCanvas = useRef(null);
  const model = useRef(null);
  const frame = useRef(0);
  const [at, setAt] = useState({ event: steps.peakEvent, block: null, pinned: null });
  const [pointed, setPointed] = useState(null);
  const [said, setSaid] = useState("");
  // What is told in tables: the moment at which the cursor rests.
  const [rested, setRested] = useState(steps.peakEvent);

  const redraw = () => {
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      const { timeline, map } = model.current;
      timeline.draw();
      if (map.isStale) map.draw();
      map.isStale = false;
    });
  };
  /** Turns both pictures to a moment and a tensor. */
  const turn = (next) => {
    const { timeline, map } = model.current;
    const event = Math.min(steps.events, Math.max(0, next.event));
    timeline.cursor = event;
    timeline.focus = next.block;
    timeline.chosen = next.pinned;
    map.focus = next.block;
    map.chosen = next.pinned;
    if (map.event !== event) map.show(event);
    map.isStale = true;
    model.current.at = { ...next, event };
    setAt(model.current.at);
    clearTimeout(model.current.resting);
    model.current.resting = setTimeout(() => {
      setSaid(spoken(steps, model.current.at));
      setRested(model.current.at.event);
    }, REST);
    redraw();
  };

  useLayoutEffect(() => {
    const element = canvas.current.parentElement;
    const build = (before) => {
      const palette = new Palette(element);
      if (before) {
        before.timeline.palette = palette;
        before.map.palette = palette;
        return before;
      }
      return {
        timeline: new Timeline(canvas.current, steps, palette, limit),
        map: new SegmentMap(mapCanvas.current, steps, palette),
        at,
      };
    };
    model.current = build(null);
    model.current.map.show(at.event);
    const again = () => {
      model.current.map.isStale = true;
      redraw();
    };
    const sizes = new ResizeObserver(again);
    sizes.observe(canvas.current);
    sizes.observe(mapCanvas.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => {
      build(model.current);
      again();
    };
    dark.addEventListener("change", recolour);
    const wheel = (event) => onWheel(event);
    canvas.current.addEventListener("wheel", wheel, { passive: false });
    again();
    const target = canvas.current;
    return () => {
      sizes.disconnect();
      dark.removeEventListener("change", recolour);
      target.removeEventListener("wheel", wheel);
      cancelAnimationFrame(frame.current);
      frame.current = 0;
      clearTimeout(model.current.resting);
    };
  }, [steps]);

  /** The same tensor at another moment, or the one in its place. */
  const blockAt = (event, before) => {
    const live = steps.liveAt(event);
    if (before === null || live.length === 0) return null;
    if (steps.allocated[before] <= event && steps.freed[before] > event) return before;
    const place = live.findIndex((block) => block > before);
    return live[place < 0 ? live.length - 1 : place];
  };
  const move = (by) => {
    const { at: now } = model.current;
    const event = Math.min(steps.events, Math.max(0, now.event + by));
    turn({ ...now, event, block: blockAt(event, now.block) });
    model.current.timeline.follow();
  };
  const go = (event, block = model.current.at.block) => {
    turn({ ...model.current.at, event, block: blockAt(event, block) });
    model.current.timeline.follow();
  };
  /** The next tensor above or below, in the order of the picture that has the focus. */
  const climb = (by, blocks) => {
    const { at: now } = model.current;
    if (blocks.length === 0) return;
    const place = now.block === null ? (by > 0 ? -1 : blocks.length) : blocks.indexOf(now.block);
    turn({ ...now, block: blocks[Math.min(blocks.length - 1, Math.max(0, place + by))] });
  };
  const pin = (block = model.current.at.block) => {
    const { at: now } = model.current;
    turn({ ...now, block, pinned: now.pinned === block ? null : block });
  };
  const zoom = (factor, place) => {
    model.current.timeline.zoom(factor, place);
    redraw();
  };

  const common = (event) => {
    const { at: now } = model.current;
    switch (event.key) {
      case "p": case "P": go(steps.peakEvent); return true;
      case "Enter": case " ": if (now.block !== null) pin(); return true;
      case "Escape": turn({ ...now, pinned: null }); return true;
      case "a": case "A": if (now.block !== null) go(steps.allocated[now.block]); return true;
      case "f": case "F": if (now.block !== null) go(Math.min(steps.events, steps.freed[now.block])); return true;
      case "Home": go(0); return true;
      case "End": go(steps.events); return true;
      default: return false;
    }
  };
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { timeline, at: now } = model.current;
    const stride = timeline.eventsPerPixel * (event.shiftKey ? 20 : 1);
    const live = () => [...steps.liveAt(now.event)];
    switch (event.key) {
      case "ArrowLeft": move(-stride); break;
      case "ArrowRight": move(stride); break;
      case "ArrowUp": climb(event.shiftKey ? 10 : 1, live()); break;
      case "ArrowDown": climb(event.shiftKey ? -10 : -1, live()); break;
      case "+": case "=": zoom(CLOSER); break;
      case "-": case "_": zoom(1 / CLOSER); break;
      case "]": timeline.stretch(CLOSER); redraw(); break;
      case "[": timeline.stretch(1 / CLOSER); redraw(); break;
      case "0": timeline.whole(); redraw(); break;
      default: if (!common(event)) return;
    }
    event.preventDefault();
  };
  const onMapKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { map } = model.current;
    const by = event.shiftKey ? 10 : 1;
    switch (event.key) {
      case "ArrowLeft": case "ArrowUp": climb(-by, map.blocks); break;
      case "ArrowRight": case "ArrowDown": climb(by, map.blocks); break;
      default: if (!common(event)) return;
    }
    event.preventDefault();
  };
  const onWheel = (event) => {
    // The page scrolls, until the timeline has the focus.
    if (document.activeElement !== canvas.current && !event.ctrlKey) return;
    event.preventDefault();
    const { timeline } = model.current;
    const box = canvas.current.getBoundingClientRect();
    const { left, top, width, height } = timeline.plot;
    const factor = Math.exp(Math.max(-100, Math.min(100, event.deltaY)) * 0.004);
    if (event.shiftKey) timeline.stretch(factor, (top + height - (event.clientY - box.top)) / height);
    else timeline.zoom(factor, (event.clientX - box.left - left) / width);
    redraw();
  };

  const fingers = useRef(new Map());
  const onPointerDown = (event) => {
    canvas.current.setPointerCapture(event.pointerId);
    fingers.current.set(event.pointerId, { x: event.clientX, y: event.clientY, start: [event.clientX, event.clientY] });
  };
  const onPointerMove = (event) => {
    const { timeline } = model.current;
    const box = canvas.current.getBoundingClientRect();
    const finger = fingers.current.get(event.pointerId);
    if (!finger) {
      setPointed(timeline.at(event.clientX - box.left, event.clientY - box.top));
      return;
    }
    const others = [...fingers.current].filter(([id]) => id !== event.pointerId).map(([, other]) => other);
    if (others.length === 1) {
      const [other] = others;
      const apart = (x) => Math.max(20, Math.abs(x - other.x));
      const middle = (finger.x + other.x) / 2 - box.left - timeline.plot.left;
      timeline.zoom(apart(finger.x) / apart(event.clientX), middle / timeline.plot.width);
    } else timeline.pan(event.clientX - finger.x, event.pointerType === "mouse" ? event.clientY - finger.y : 0);
    Object.assign(finger, { x: event.clientX, y: event.clientY });
    redraw();
  };
  const onPointerUp = (event) => {
    const finger = fingers.current.get(event.pointerId);
    fingers.current.delete(event.pointerId);
    const [x, y] = finger?.start ?? [0, 0];
    if (!finger || Math.hypot(event.clientX - x, event.clientY - y) > STILL) return;
    const box = canvas.current.getBoundingClientRect();
    const found = model.current.timeline.at(event.clientX - box.left, event.clientY - box.top);
    if (found) turn({ ...model.current.at, ...found });
  };
  const onMapPointer = (event) => {
    const box = mapCanvas.current.getBoundingClientRect();
    const [, block] = model.current.map.at(event.clientX - box.left, event.clientY - box.top);
    if (event.type === "click") {
      if (block !== null) turn({ ...model.current.at, block });
    } else setPointed(block === null ? null : { event: at.event, block });
  };

  const shown = pointed?.block ?? at.block ?? at.pinned;
  const begins = steps.bands.filter((band, index) => index === 0 || steps.bands[index - 1].step !== band.step);
  return html`<div class="step-run">
    <section aria-labelledby="step-time">
      <h2 id="step-time">Memory over time</h2>
      <div class="step-tools" role="toolbar" aria-label="Timeline">
        <button type="button" onClick=${() => zoom(CLOSER)}>Zoom in</button>
        <button type="button" onClick=${() => zoom(1 / CLOSER)}>Zoom out</button>
        <button type="button" onClick=${() => { model.current.timeline.whole(); redraw(); }}>Everything</button>
        <button type="button" onClick=${() => go(steps.peakEvent)}>Go to the peak</button>
        ${begins.length > 1 && html`<label for="step-go">Go to</label>
          <select id="step-go" onChange=${(event) => event.target.value && go(Number(event.target.value))}>
            <option value="">…</option>
            ${begins.map((band) => html`<option value=${band.event}>
              ${band.step ? `${steps.hasCategories ? "step" : "round"} ${band.step}` : "the start"}
            </option>`)}
          </select>`}
      </div>
      <details class="step-keys"><summary>Keys</summary><p id="step-keys">${KEYS}</p></details>
      <canvas ref=${canvas} class="step-timeline" tabindex="0" role="application" aria-roledescription="timeline"
        aria-label="Memory over time" aria-describedby="step-keys" onKeyDown=${onKey}
        onPointerDown=${onPointerDown} onPointerMove=${onPointerMove} onPointerUp=${onPointerUp}
        onPointerCancel=${(event) => fingers.current.delete(event.pointerId)} onPointerLeave=${() => setPointed(null)}></canvas>
      <label class="step-moment">Moment
        <input type="range" min="0" max=${steps.events} step="1" value=${at.event}
          aria-valuetext=${`event ${at.event}, ${steps.moment(at.event)}`}
          onInput=${(event) => go(Number(event.target.value))} /></label>
      <${Legend} steps=${steps} hasLimit=${limit !== null} />
      ${steps.omitted > 0 && html`<p class="step-note">The first ${steps.events.toLocaleString("en")} events are shown;
        ${steps.omitted.toLocaleString("en")} more are left out.</p>`}
      ${steps.repeats.event.length > 0 && html`<p class="step-note">Micro-steps that repeat those before them allocation by allocation
        are shown once.</p>`}
    </section>
    <div class="step-told">
      <${Moment} steps=${steps} event=${at.event} />
      <${Tensor} steps=${steps} block=${shown} isPinned=${shown !== null && shown === at.pinned}
        onGo=${(event) => go(event, shown)} onPin=${() => pin(shown)} />
    </div>
    <p class="step-live unseen" role="status" aria-live="polite">${said}</p>
    <section aria-labelledby="step-map">
      <h2 id="step-map">Segments at event ${at.event.toLocaleString("en")}</h2>
      <p class="step-keys">What is reserved, from the lowest address to the highest, row after row; grey lies free. Arrow keys move from
        block to block.</p>
      <canvas ref=${mapCanvas} class="step-segments" tabindex="0" role="application" aria-roledescription="map of segments"
        aria-labelledby="step-map" aria-describedby="step-keys" onKeyDown=${onMapKey}
        onPointerMove=${onMapPointer} onPointerLeave=${() => setPointed(null)} onClick=${onMapPointer}></canvas>
    </section>
    <${Tables} steps=${steps} event=${rested} pinned=${at.pinned} onPin=${pin} />
  </div>`;
}
