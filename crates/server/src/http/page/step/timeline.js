// The timeline on its canvas: bands of what the step does, the stack of tensors below, what is reserved, and the cursor.

import { bytes as size } from "../format.js";
import { PHASES } from "./data.js";
import { columnEvents, paintStacks } from "./paint.js";

const BAND = 18;
const TOP = 2 * BAND + 4;
const BOTTOM = 20;
/** Events that are shown at least. */
const CLOSEST = 8;
/** The least part of all bytes that is shown. */
const LOWEST = 1 / 4096;

export class Timeline {
  /** `limit` are the bytes that may be reserved, or null. */
  constructor(canvas, steps, palette, limit) {
    Object.assign(this, { canvas, steps, palette, limit });
    this.context = canvas.getContext("2d", { alpha: false });
    this.picture = document.createElement("canvas");
    this.pictureContext = this.picture.getContext("2d", { willReadFrequently: true });
    this.cursor = steps.peakEvent;
    this.chosen = null;
    this.whole();
  }

  whole() {
    this.view = { from: 0, to: this.steps.events + 1, low: 0, high: this.steps.most * 1.04 || 1 };
  }

  get gutter() {
    return this.canvas.clientWidth < 480 ? 70 : 76;
  }

  get plot() {
    const { clientWidth, clientHeight } = this.canvas;
    return {
      left: this.gutter,
      top: TOP,
      width: Math.max(1, Math.floor(clientWidth - this.gutter)),
      height: Math.max(1, Math.floor(clientHeight - TOP - BOTTOM)),
    };
  }

  /** Shows `factor` times as much of the time, keeping the event at a place of the plot, from 0 to 1. */
  zoom(factor, place = this.placeOf(this.cursor)) {
    const { from, to } = this.view;
    const all = this.steps.events + 1;
    const span = Math.min(all, Math.max(CLOSEST, (to - from) * factor));
    const kept = Math.min(1, Math.max(0, place));
    this.show(from + (to - from) * kept - span * kept, span);
  }

  /** The same for bytes, keeping those at a place, from 0 at the bottom to 1. */
  stretch(factor, place = 0) {
    const { low, high } = this.view;
    const all = this.steps.most * 1.04 || 1;
    const span = Math.min(all, Math.max(all * LOWEST, (high - low) * factor));
    const kept = low + (high - low) * place;
    this.lift(kept - span * place, span);
  }

  show(from, span) {
    const all = this.steps.events + 1;
    this.view.from = Math.min(Math.max(0, from), Math.max(0, all - span));
    this.view.to = this.view.from + span;
  }

  lift(low, span) {
    const all = this.steps.most * 1.04 || 1;
    this.view.low = Math.min(Math.max(0, low), Math.max(0, all - span));
    this.view.high = this.view.low + span;
  }

  /** Moves what is shown by pixels. */
  pan(right, up) {
    const { from, to, low, high } = this.view;
    const { width, height } = this.plot;
    this.show(from - (right * (to - from)) / width, to - from);
    this.lift(low + (up * (high - low)) / height, high - low);
  }

  /** Brings the cursor into view. */
  follow() {
    const { from, to } = this.view;
    const span = to - from;
    if (this.cursor < from) this.show(this.cursor - span * 0.05, span);
    else if (this.cursor >= to) this.show(this.cursor + 1 - span * 0.95, span);
  }

  placeOf(event) {
    const { from, to } = this.view;
    return (event + 0.5 - from) / (to - from);
  }

  /** How many events a pixel stands for, at least one. */
  get eventsPerPixel() {
    return Math.max(1, Math.round((this.view.to - this.view.from) / this.plot.width));
  }

  /** The event and the block at a place of the canvas, in CSS pixels. */
  at(x, y) {
    const { left, top, width, height } = this.plot;
    if (x < left || x >= left + width) return null;
    const event = this.events?.[Math.min(this.events.length - 1, Math.floor(x - left))];
    if (event === undefined) return null;
    const { low, high } = this.view;
    const bytes = low + ((top + height - y) / height) * (high - low);
    let below = 0;
    let block = null;
    if (y >= top && y < top + height) {
      for (const one of this.steps.liveAt(event)) {
        below += this.steps.bytes[one];
        if (below > bytes) {
          block = one;
          break;
        }
      }
    }
    return { event, block };
  }

  draw() {
    const { canvas, context, palette, steps, view } = this;
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    const [wide, high] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (wide === 0 || high === 0) return;
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
    }
    const { left, top, width, height } = this.plot;
    if (this.image?.width !== width || this.image?.height !== height) {
      this.picture.width = width;
      this.picture.height = height;
      this.image = this.pictureContext.createImageData(width, height);
      this.pixels = new Int32Array(this.image.data.buffer);
    }
    this.events = columnEvents(steps, view.from, view.to, width);
    paintStacks(this.pixels, {
      width, height, events: this.events, low: view.low, high: view.high, steps, palette, chosen: this.chosen,
    });
    this.pictureContext.putImageData(this.image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = palette.css("--step-paper");
    context.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, left, top, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.#bands();
    this.#scales();
    this.#lines();
    this.#cursor();
  }

  /** Rows of phases and of steps, as the columns show them. */
  #bands() {
    const { context, palette, steps, events } = this;
    const { left, width } = this.plot;
    const runs = (of, row, fill, text) => {
      let first = 0;
      for (let column = 1; column <= width; column += 1) {
        const before = of(steps.band(events[first]));
        if (column < width && of(steps.band(events[column])) === before) continue;
        const wide = column - first;
        context.fillStyle = fill(before, row);
        context.fillRect(left + first, row * BAND, wide > 2 ? wide - 1 : wide, BAND - 2);
        const label = text(before);
        if (label && wide > 24) {
          context.fillStyle = palette.css("--step-band-ink");
          const shown = fitting(context, label, wide - 8);
          context.fillText(shown, left + first + 4, row * BAND + BAND / 2 - 0.5);
        }
        first = column;
      }
    };
    const colour = (phase) => palette.css(`--step-${phase ?? "before"}`);
    runs((band) => band?.phase ?? null, 0, colour, (phase) => PHASES[phase] ?? "");
    const step = (number) => palette.css(number % 2 ? "--step-odd" : "--step-even");
    const named = steps.hasCategories ? (number) => (number ? `step ${number}` : "construction") : (number) => (number ? `round ${number}` : "");
    runs((band) => band?.step ?? 0, 1, step, named);
  }

  #scales() {
    const { context, palette, view, steps } = this;
    const { left, top, width, height } = this.plot;
    context.fillStyle = palette.css("--step-muted");
    context.strokeStyle = palette.css("--step-grid");
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const bytes of ticks(view.low, view.high, Math.max(2, Math.floor(height / 60)))) {
      const y = Math.round(top + height - ((bytes - view.low) / (view.high - view.low)) * height) + 0.5;
      context.beginPath();
      context.moveTo(left - 4, y);
      context.lineTo(left + width, y);
      context.stroke();
      context.fillText(size(bytes), left - 6, Math.min(y, top + height - 6));
    }
    context.textAlign = "left";
    const end = Math.min(steps.events, Math.ceil(view.to) - 1);
    context.fillText(`event ${Math.floor(view.from).toLocaleString("en")}`, left, top + height + BOTTOM / 2);
    context.textAlign = "right";
    context.fillText(end.toLocaleString("en"), left + width, top + height + BOTTOM / 2);
    context.textAlign = "left";
  }

  #y(bytes) {
    const { top, height } = this.plot;
    return top + height - ((bytes - this.view.low) / (this.view.high - this.view.low)) * height;
  }

  /** What is reserved, the limit, what was refused and the peak. */
  #lines() {
    const { context, palette, steps, view, events, limit } = this;
    const { left, top, width, height } = this.plot;
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.lineWidth = 1.5;
    context.strokeStyle = palette.css("--step-reserved");
    context.beginPath();
    let before = null;
    for (let column = 0; column < width; column += 1) {
      const y = this.#y(steps.reservedAt[events[column]]);
      if (y === before) continue;
      if (before === null) context.moveTo(left, y);
      else {
        context.lineTo(left + column, before);
        context.lineTo(left + column, y);
      }
      before = y;
    }
    context.lineTo(left + width, before);
    context.stroke();
    if (limit !== null && limit < view.high) {
      context.setLineDash([6, 4]);
      context.strokeStyle = palette.css("--limit");
      context.beginPath();
      context.moveTo(left, this.#y(limit));
      context.lineTo(left + width, this.#y(limit));
      context.stroke();
      context.setLineDash([]);
    }
    context.fillStyle = palette.css("--limit");
    for (const event of steps.refused.event) {
      if (event < view.from || event >= view.to) continue;
      context.fillRect(left + this.placeOf(event) * width - 1, top, 2, height);
    }
    context.restore();
  }

  #cursor() {
    const { context, palette, view, steps } = this;
    const { left, top, width, height } = this.plot;
    const { peakEvent, cursor } = this;
    if (peakEvent >= view.from && peakEvent < view.to) {
      const x = left + this.placeOf(peakEvent) * width;
      context.fillStyle = palette.css("--step-ink");
      context.beginPath();
      context.moveTo(x - 5, top);
      context.lineTo(x + 5, top);
      context.lineTo(x, top + 7);
      context.fill();
    }
    if (cursor < view.from || cursor >= view.to) return;
    const x = Math.round(left + this.placeOf(cursor) * width) + 0.5;
    context.strokeStyle = palette.css("--step-ink");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + height);
    context.stroke();
    if (this.focus === null || this.focus === undefined) return;
    let low = 0;
    for (const block of steps.liveAt(cursor)) {
      if (block === this.focus) {
        const [bottom, above] = [this.#y(low), this.#y(low + steps.bytes[block])];
        context.lineWidth = 2;
        context.strokeRect(x - 6, Math.max(top, above) - 1, 12, Math.max(3, Math.min(bottom, top + height) - Math.max(top, above) + 2));
        return;
      }
      low += steps.bytes[block];
    }
  }

  get peakEvent() {
    return this.steps.peakEvent;
  }
}

/** As much of a text as a width holds. */
function fitting(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let shown = text;
  while (shown && context.measureText(`${shown}…`).width > width) shown = shown.slice(0, -1);
  return shown ? `${shown}…` : "";
}

/** Round numbers of bytes between two. */
function ticks(low, high, most) {
  const rough = (high - low) / most;
  let each = 1;
  while (each < rough) each *= 2;
  const all = [];
  for (let at = Math.ceil(low / each) * each; at <= high; at += each) all.push(at);
  return all;
}
