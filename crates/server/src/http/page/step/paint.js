// Fills pixels: the stack of tensors over time, a column for each pixel, and the map of segments, a row after the other.
//
// Each column shows the event of its stretch at which most is allocated, so that no peak is lost however far out one looks; what is
// lower than a pixel is not drawn, and from one column to the next only what lies above the lowest change is stacked again: most of what
// a step allocates last it frees first. Zooming therefore costs about the same for a thousand events and for a hundred thousand.

/** How many shades tell neighbours of one colour apart. */
const TINTS = 4;
/** Heights, in pixels, from which on a tensor has a line above it. */
const LINED = 4;

/** Colours as the pixels of an ImageData have them, in this machine's order of bytes. */
export function packed(css, context) {
  context.fillStyle = css;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return [red, green, blue];
}

const pixel = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;

const mixed = (one, other, part) => one.map((value, index) => Math.round(value + (other[index] - value) * part));

/** The colours of both pictures, from the custom properties of an element. */
export class Palette {
  constructor(element) {
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const style = getComputedStyle(element);
    const read = (name) => packed(style.getPropertyValue(name).trim() || "#888888", context);
    this.paper = read("--step-paper");
    this.ink = read("--step-ink");
    const shades = Array.from({ length: 9 }, (_, index) => read(`--step-${index}`));
    const known = new Map();
    this.css = (name) => {
      if (!known.has(name)) known.set(name, style.getPropertyValue(name).trim());
      return known.get(name);
    };
    this.background = pixel(this.paper);
    this.free = pixel(read("--step-free"));
    this.chosen = pixel(read("--step-chosen"));
    this.tints = new Int32Array(shades.length * TINTS);
    this.lines = new Int32Array(shades.length);
    shades.forEach((shade, index) => {
      for (let tint = 0; tint < TINTS; tint += 1) {
        this.tints[index * TINTS + tint] = pixel(mixed(shade, this.paper, tint * 0.09));
      }
      this.lines[index] = pixel(mixed(shade, this.ink, 0.45));
    });
  }

  of(steps, block) {
    return this.tints[steps.shade[block] * TINTS + (block % TINTS)];
  }
}

/** The event that each column shows, from `from` up to `to`, not including it. */
export function columnEvents(steps, from, to, width) {
  const events = new Uint32Array(width);
  const each = (to - from) / width;
  for (let column = 0; column < width; column += 1) {
    const first = Math.max(0, Math.floor(from + column * each));
    const end = Math.min(steps.events + 1, Math.max(first + 1, Math.floor(from + (column + 1) * each)));
    let best = Math.min(first, steps.events);
    for (let event = first + 1; event < end; event += 1) {
      if (steps.allocatedAt[event] > steps.allocatedAt[best]) best = event;
    }
    events[column] = best;
  }
  return events;
}

/** Fills `pixels`, of `width` times `height`, with the stacks right after `events`, between the bytes `low` and `high`. */
export function paintStacks(pixels, { width, height, events, low, high, steps, palette, chosen }) {
  pixels.fill(palette.background);
  if (width === 0) return;
  const last = events[width - 1];
  const start = steps.liveAt(events[0]);
  const { bytes, freed, allocated, shade } = steps;
  const scale = height / (high - low);
  // What lies below all that changes is the same in every column.
  let [still, base] = [0, 0];
  while (still < start.length && freed[start[still]] > last) {
    const block = start[still];
    fillRows(pixels, { width, height, low, scale, palette, steps, chosen }, block, base);
    base += bytes[block];
    still += 1;
  }
  const rest = new Uint32Array(start.length - still + steps.blocksBy[last] - steps.blocksBy[events[0]]);
  // What is stacked up below each of the rest, and its row, from above.
  const below = new Float64Array(rest.length + 1);
  const rows = new Int32Array(rest.length + 1);
  below[0] = base;
  rows[0] = rowOf(base, low, scale, height);
  let length = start.length - still;
  rest.set(start.subarray(still));
  let next = steps.blocksBy[events[0]];
  const { tints, lines } = palette;
  for (let column = 0; column < width; column += 1) {
    const event = events[column];
    let same = 0;
    if (column > 0) {
      same = unchanged(steps, rest, length, events[column - 1], event);
      for (let at = rows[same] * width + column, end = rows[0] * width; at < end; at += width) pixels[at] = pixels[at - 1];
      if (event === events[column - 1]) continue;
    }
    while (next < steps.count && allocated[next] <= event) rest[length++] = next++;
    let kept = same;
    let sum = below[same];
    let row = rows[same];
    for (let index = same; index < length; index += 1) {
      const block = rest[index];
      if (freed[block] <= event) continue;
      rest[kept++] = block;
      sum += bytes[block];
      // `rowOf`, which costs more here.
      const edge = height - (sum - low) * scale;
      const top = edge <= 0 ? 0 : edge >= height ? height : (edge + 0.5) | 0;
      below[kept] = sum;
      rows[kept] = top;
      if (top >= row) continue;
      const colour = block === chosen ? palette.chosen : tints[shade[block] * TINTS + (block % TINTS)];
      let at = top * width + column;
      const end = row * width + column;
      if (row - top >= LINED) {
        pixels[at] = lines[shade[block]];
        at += width;
      }
      for (; at < end; at += width) pixels[at] = colour;
      row = top;
    }
    length = kept;
  }
}

/** How many of the blocks, from the lowest, are where they were: those below the first that was freed meanwhile. */
function unchanged(steps, rest, length, before, event) {
  let lowest = 0xffffffff;
  for (let at = before + 1; at <= event; at += 1) {
    const block = steps.freedBy[at];
    if (block < lowest) lowest = block;
  }
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rest[middle] < lowest) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The first row, from above, that lies below so many bytes. */
function rowOf(bytes, low, scale, height) {
  const high = height - (bytes - low) * scale;
  return high <= 0 ? 0 : high >= height ? height : (high + 0.5) | 0;
}

function fillRows(pixels, { width, height, low, scale, palette, steps, chosen }, block, base) {
  const row = rowOf(base, low, scale, height);
  const top = rowOf(base + steps.bytes[block], low, scale, height);
  if (top >= row) return;
  pixels.fill(block === chosen ? palette.chosen : palette.of(steps, block), top * width, row * width);
  if (row - top >= LINED) pixels.fill(palette.lines[steps.shade[block]], top * width, (top + 1) * width);
}

/** Where the bytes of a map lie: segments one after the other, in rows. */
export class MapLayout {
  constructor(map, width, height) {
    this.map = map;
    this.total = map.reduce((sum, segment) => sum + segment.end - segment.start, 0);
    this.width = width;
    this.rows = Math.max(1, Math.floor(height / 12));
    this.rowHeight = Math.floor(height / this.rows);
    this.each = this.total / (this.rows * width) || 1;
    this.starts = [];
    let at = 0;
    for (const segment of map) {
      this.starts.push(at);
      at += segment.end - segment.start;
    }
  }

  /** The segment and block at a place of the picture: `[segment, block]`, without what is not there. */
  at(steps, x, y) {
    const row = Math.floor(y / this.rowHeight);
    if (row < 0 || row >= this.rows || x < 0 || x >= this.width) return [null, null];
    const bytes = (row * this.width + x) * this.each;
    const index = this.starts.findLastIndex((start) => start <= bytes);
    if (index < 0 || bytes >= this.total) return [null, null];
    const segment = this.map[index];
    const address = segment.start + (bytes - this.starts[index]);
    const block = segment.blocks.find((one) =>
      steps.address[one] <= address && address < steps.address[one] + steps.bytes[one]);
    return [segment, block ?? null];
  }
}

/** Fills `pixels` with a map: what is in use in its colours, what lies free between it, and a line where a segment begins. */
export function paintMap(pixels, { width, layout, steps, palette, chosen }) {
  pixels.fill(palette.background);
  const { map, each, rowHeight, rows } = layout;
  // A colour for each place of the strip, which is then cut into rows.
  const strip = new Int32Array(rows * width).fill(palette.background);
  const place = (bytes) => Math.min(strip.length, Math.round(bytes / each));
  map.forEach((segment, index) => {
    const offset = layout.starts[index];
    const [from, to] = [place(offset), place(offset + segment.end - segment.start)];
    strip.fill(palette.free, from, to);
    for (const block of segment.blocks) {
      const start = offset + steps.address[block] - segment.start;
      const [first, end] = [place(start), place(start + steps.bytes[block])];
      if (first >= end) continue;
      const colour = block === chosen ? palette.chosen : palette.of(steps, block);
      strip.fill(colour, first, end);
      if (segment.states.has(block)) for (let at = first; at < end; at += 2) strip[at] = palette.free;
      if (end - first >= LINED) strip[end - 1] = palette.lines[steps.shade[block]];
    }
    if (to - from >= 3) strip[from] = pixel(palette.ink);
  });
  for (let row = 0; row < rows; row += 1) {
    const colours = strip.subarray(row * width, (row + 1) * width);
    for (let line = row * rowHeight; line < (row + 1) * rowHeight - 2; line += 1) pixels.set(colours, line * width);
  }
}
