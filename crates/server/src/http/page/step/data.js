// What is where after each event, from the columns of `events`: `MemoryEvents` in /openapi.yaml.
//
// Events are numbered from 1, and 0 is before the first. A block is there from its `allocated` event up to the one before `freed`.

import { words as inWords } from "../format.js";

/** `freed` of a block that nothing freed. */
const NEVER = 0xffffffff;
/** Live blocks and segments are kept after each so many events; others are reached from there. */
const EVERY = 1024;

/** The names of phases, as bands show them. */
export const PHASES = {
  forward: "forward",
  backward: "backward",
  recomputation: "forward again",
  optimizer_step: "optimizer",
};

/** What blocks are for, in the order of the legend. */
export const CATEGORIES = [
  "parameters",
  "gradients",
  "optimizer_state",
  "optimizer_scratch",
  "batch",
  "activations",
  "activation_gradients",
  "workspace",
  "communication",
];

/** The columns as typed arrays, with what is reached from them. */
export class Steps {
  constructor(told) {
    const { blocks, segments, bands, pending, refused, repeats } = told;
    this.events = told.events;
    this.omitted = told.omitted;
    this.peakEvent = told.peak_event;
    this.owners = told.owners;
    this.refused = refused;
    this.repeats = repeats;
    this.count = blocks.allocated.length;
    this.allocated = Uint32Array.from(blocks.allocated);
    this.freed = Uint32Array.from(blocks.freed, (freed) => freed ?? NEVER);
    this.address = Float64Array.from(blocks.address);
    this.bytes = Float64Array.from(blocks.bytes);
    this.requested = Float64Array.from(blocks.requested_bytes);
    this.owner = Uint32Array.from(blocks.owner);
    // Of a recording, whose blocks are for nobody knows what, the line decides on the colour.
    this.hasCategories = told.owners.some((owner) => owner.category);
    const shades = told.owners.map((owner, index) =>
      this.hasCategories ? Math.max(0, CATEGORIES.indexOf(owner.category)) : index % 8);
    this.shade = Uint8Array.from(this.owner, (owner) => shades[owner]);
    this.bands = bands.event.map((event, index) => ({
      event,
      end: index + 1 < bands.event.length ? bands.event[index + 1] - 1 : told.events,
      step: bands.step[index],
      phase: bands.phase[index],
    })).filter((band) => band.end >= band.event);
    this.bandAt = bandNumbers(this.bands, told.events);
    this.until = new Map(pending.block.map((block, index) => [block, pending.until[index]]));
    this.segments = segments;
    this.#follow();
  }

  /** Walks through all events once. */
  #follow() {
    const total = this.events + 1;
    this.allocatedAt = new Float64Array(total);
    this.reservedAt = new Float64Array(total);
    this.blocksBy = new Uint32Array(total);
    // The block that an event frees: at most one.
    this.freedBy = new Uint32Array(total).fill(NEVER);
    for (let block = 0; block < this.count; block += 1) {
      this.allocatedAt[this.allocated[block]] += this.bytes[block];
      this.blocksBy[this.allocated[block]] += 1;
      if (this.freed[block] !== NEVER) {
        this.allocatedAt[this.freed[block]] -= this.bytes[block];
        this.freedBy[this.freed[block]] = block;
      }
    }
    const { event, action, bytes } = this.segments;
    for (let at = 0; at < event.length; at += 1) {
      const sign = action[at] === "alloc" || action[at] === "map" ? 1 : -1;
      this.reservedAt[event[at]] += sign * bytes[at];
    }
    this.most = 0;
    let highest = 0;
    for (let at = 0; at < total; at += 1) {
      if (at > 0) {
        this.allocatedAt[at] += this.allocatedAt[at - 1];
        this.reservedAt[at] += this.reservedAt[at - 1];
        this.blocksBy[at] += this.blocksBy[at - 1];
      }
      this.most = Math.max(this.most, this.reservedAt[at], this.allocatedAt[at]);
      if (this.allocatedAt[at] > this.allocatedAt[highest]) highest = at;
    }
    this.peakEvent ??= highest;
    this.kept = [];
    this.keptSegments = [];
    let live = new Uint32Array(0);
    const held = [];
    let segment = 0;
    for (let at = 0; at < total; at += EVERY) {
      live = this.#liveFrom(live, at - EVERY, at);
      this.kept.push(live);
      segment = this.#applySegments(held, segment, at);
      this.keptSegments.push([segment, held.map((range) => [...range])]);
    }
  }

  /** Blocks live after an event, in the order of their allocations. */
  liveAt(event) {
    if (this.live?.event !== event) {
      const kept = Math.floor(event / EVERY);
      this.live = { event, blocks: this.#liveFrom(this.kept[kept], kept * EVERY, event) };
    }
    return this.live.blocks;
  }

  #liveFrom(live, from, to) {
    const first = from < 0 ? 0 : this.blocksBy[from];
    const end = this.blocksBy[to];
    const out = new Uint32Array(live.length + end - first);
    let length = 0;
    for (const block of live) if (this.freed[block] > to) out[length++] = block;
    for (let block = first; block < end; block += 1) if (this.freed[block] > to) out[length++] = block;
    return out.subarray(0, length);
  }

  /** Ranges of addresses held from the driver after an event, in the order of their addresses: of an expandable segment, what is mapped. */
  segmentsAt(event) {
    const [next, held] = this.keptSegments[Math.floor(event / EVERY)];
    const ranges = held.map((range) => [...range]);
    this.#applySegments(ranges, next, event);
    return ranges;
  }

  #applySegments(held, next, to) {
    const { event, action, address, bytes } = this.segments;
    let at = next;
    for (; at < event.length && event[at] <= to; at += 1) {
      const start = address[at];
      const end = start + bytes[at];
      let place = lowerBound(held, start);
      if (action[at] === "alloc" || action[at] === "map") {
        const before = held[place - 1];
        // What is mapped where something else ends goes on with it.
        if (action[at] === "map" && before?.[1] === start && before[2]) before[1] = end;
        else {
          held.splice(place, 0, [start, end, action[at] === "map"]);
          place += 1;
        }
        const [left, right] = [held[place - 1], held[place]];
        if (action[at] === "map" && right?.[0] === left[1] && right[2]) {
          left[1] = right[1];
          held.splice(place, 1);
        }
      } else {
        if (held[place]?.[0] !== start) place -= 1;
        const range = held[place];
        if (!range) continue;
        const [first, last, mapped] = range;
        const rest = [];
        if (first < start) rest.push([first, start, mapped]);
        if (end < last) rest.push([end, last, mapped]);
        held.splice(place, 1, ...rest);
      }
    }
    return at;
  }

  /** The map right after an event: segments with their blocks, each in the order of addresses. `state` is "live" or "waiting". */
  mapAt(event) {
    if (this.map?.event !== event) this.map = { event, segments: this.#mapAt(event) };
    return this.map.segments;
  }

  #mapAt(event) {
    const live = [...this.liveAt(event)];
    const states = new Map();
    for (const [block, until] of this.until) {
      if (this.freed[block] <= event && event < until) {
        live.push(block);
        states.set(block, "waiting");
      }
    }
    live.sort((one, other) => this.address[one] - this.address[other]);
    let next = 0;
    return this.segmentsAt(event).map(([start, end, mapped]) => {
      while (next < live.length && this.address[live[next]] < start) next += 1;
      const blocks = [];
      while (next < live.length && this.address[live[next]] < end) blocks.push(live[next++]);
      return { start, end, mapped, blocks, states };
    });
  }

  /** The band that an event lies in. */
  band(event) {
    return this.bands[this.bandAt[Math.max(1, event)] - 1];
  }

  /** What a step or phase is called. */
  moment(event) {
    const band = this.band(event);
    if (!band || (band.step === 0 && !band.phase)) return this.hasCategories ? "construction" : "before the first round";
    return band.phase ? `${PHASES[band.phase]} of step ${band.step}` : `round ${band.step}`;
  }

  /** Bytes by purpose, or by line, after an event, most first. */
  sharesAt(event) {
    const byOwner = new Map();
    for (const block of this.liveAt(event)) {
      const owner = this.owner[block];
      byOwner.set(owner, (byOwner.get(owner) ?? 0) + this.bytes[block]);
    }
    const shares = new Map();
    for (const [owner, bytes] of byOwner) {
      const { category, operation } = this.owners[owner];
      const name = this.hasCategories ? category : operation || "no line known";
      shares.set(name, (shares.get(name) ?? 0) + bytes);
    }
    return [...shares].toSorted((one, other) => other[1] - one[1]);
  }

  /** The largest blocks after an event. */
  largestAt(event, most) {
    const live = [...this.liveAt(event)];
    return live.toSorted((one, other) => this.bytes[other] - this.bytes[one] || one - other).slice(0, most);
  }

  /** What lies free in segments after an event. */
  freeAt(event) {
    const free = { bytes: this.reservedAt[event] - this.allocatedAt[event], pieces: 0, largest: 0 };
    for (const { start, end, blocks } of this.mapAt(event)) {
      let at = start;
      const gap = (to) => {
        if (to > at) {
          free.pieces += 1;
          free.largest = Math.max(free.largest, to - at);
        }
      };
      for (const block of blocks) {
        gap(this.address[block]);
        at = this.address[block] + this.bytes[block];
      }
      gap(end);
    }
    return free;
  }

  /** A block in words: whose it is, what for, how large and from when to when. */
  words(block) {
    const { module, operation, category } = this.owners[this.owner[block]];
    const freed = this.freed[block];
    return {
      module: module || (this.hasCategories ? "no module" : ""),
      operation: operation || "no line known",
      category: category ? inWords(category) : null,
      bytes: this.bytes[block],
      requested: this.requested[block],
      from: this.allocated[block],
      to: freed === NEVER ? null : freed,
      address: this.address[block],
    };
  }
}

/** For each event the number of its band, from 1; 0 for none. */
function bandNumbers(bands, events) {
  const numbers = new Uint32Array(events + 2);
  bands.forEach((band, index) => numbers.fill(index + 1, band.event, band.end + 1));
  return numbers;
}

/** The first range that starts at an address or above it. */
function lowerBound(ranges, address) {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle][0] < address) low = middle + 1;
    else high = middle;
  }
  return low;
}
