// The map of segments on its canvas: what is reserved at a moment, from the lowest address to the highest, row after row.

import { MapLayout, paintMap } from "./paint.js";

export class SegmentMap {
  constructor(canvas, steps, palette) {
    Object.assign(this, { canvas, steps, palette });
    this.context = canvas.getContext("2d", { alpha: false });
    this.picture = document.createElement("canvas");
    this.chosen = null;
    this.focus = null;
    this.show(0);
  }

  /** Turns to the moment right after an event. */
  show(event) {
    this.event = event;
    this.map = this.steps.mapAt(event);
  }

  /** The blocks in the order of their addresses. */
  get blocks() {
    return this.map.flatMap((segment) => segment.blocks);
  }

  at(x, y) {
    return this.layout?.at(this.steps, Math.floor(x), Math.floor(y)) ?? [null, null];
  }

  draw() {
    const { canvas, context, palette, steps } = this;
    const ratio = Math.min(window.devicePixelRatio || 1, 3);
    const width = Math.max(1, Math.floor(canvas.clientWidth));
    const height = Math.max(1, Math.floor(canvas.clientHeight));
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
    }
    if (this.image?.width !== width || this.image?.height !== height) {
      this.picture.width = width;
      this.picture.height = height;
      this.into = this.picture.getContext("2d", { willReadFrequently: true });
      this.image = this.into.createImageData(width, height);
    }
    this.layout = new MapLayout(this.map, width, height);
    paintMap(new Int32Array(this.image.data.buffer), {
      width, layout: this.layout, steps, palette, chosen: this.chosen,
    });
    this.into.putImageData(this.image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, 0, 0, width, height);
    if (this.focus !== null) this.#outline(this.focus);
  }

  #outline(block) {
    const { steps, layout, context, palette } = this;
    const index = layout.map.findIndex((segment) => segment.blocks.includes(block));
    if (index < 0) return;
    const start = layout.starts[index] + steps.address[block] - layout.map[index].start;
    const first = Math.round(start / layout.each);
    const end = Math.max(first + 1, Math.round((start + steps.bytes[block]) / layout.each));
    context.strokeStyle = palette.css("--step-ink");
    context.lineWidth = 2;
    const { width, rowHeight } = layout;
    for (let row = Math.floor(first / width); row * width < end; row += 1) {
      const from = Math.max(first, row * width) - row * width;
      const to = Math.min(end, (row + 1) * width) - row * width;
      context.strokeRect(from - 1, row * rowHeight, Math.max(4, to - from + 2), rowHeight - 2);
    }
  }
}
