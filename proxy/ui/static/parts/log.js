/**
 * A log of which a window is in memory. A log may be a million entries long: what is kept is the part
 * that is looked at.
 *
 * A source is `{last, entries(after, limit), follow?(after, stop), raw?(after, limit), shown(dialect, after, limit),
 * curl?(after, limit)}`: `last` is the newest seq when it was opened, `follow` yields arrays of new entries.
 */
import { signal } from "../html.js";

const FIRST = 100;
const PIECE = 500;
const MOST = 3000;
const FLUSH_MS = 120;
const CHUNK = 40;
const CHUNKS = 200;

export class LogWindow {
  /** Counts changes: who reads it is drawn anew. */
  version = signal(0);
  /** Whether the end is followed. */
  live = signal(true);
  /** Why there is no more, or "". */
  failed = signal("");
  entries = [];
  #loading = null;
  #pending = [];
  #timer = 0;
  #stop = new AbortController();

  constructor(source) {
    this.source = source;
    this.last = source.last;
  }

  get first() {
    return this.entries[0]?.seq ?? 1;
  }

  get end() {
    return this.entries.at(-1)?.seq ?? 0;
  }

  at(seq) {
    return this.entries[seq - this.first];
  }

  get closed() {
    return this.#stop.signal.aborted;
  }

  close() {
    this.#stop.abort();
    clearTimeout(this.#timer);
  }

  /** Show the window around a seq, or the end. */
  async open(seq = this.last) {
    const after = Math.max(0, Math.min(seq - FIRST / 2, this.last - FIRST));
    const found = await this.#read(after, FIRST);
    if (found) this.#set(found);
  }

  /** Go on to the newest entry and follow it. */
  async resume() {
    this.live.value = true;
    if (this.end < this.last) await this.open();
  }

  /** Read on where the window ends, or begins. */
  async more(direction) {
    if (this.#loading) return;
    const { entries, first, end } = this;
    if (direction > 0 && end < this.last) {
      const found = await this.#read(end, PIECE);
      // The window may have gone elsewhere meanwhile.
      if (found && this.end === end) this.#set([...this.entries, ...found], 1);
    } else if (direction < 0 && first > 1 && entries.length) {
      const after = Math.max(0, first - PIECE - 1);
      const found = await this.#read(after, first - 1 - after);
      if (found && this.first === first) this.#set([...found, ...this.entries], -1);
    }
  }

  async #read(after, limit) {
    const work = this.source.entries(after, limit);
    this.#loading = work;
    try {
      return await work;
    } catch (error) {
      this.failed.value = error.message;
      return null;
    } finally {
      this.#loading = null;
    }
  }

  #set(entries, keep = 1) {
    this.entries = entries.length > MOST ? (keep > 0 ? entries.slice(-MOST) : entries.slice(0, MOST)) : entries;
    this.last = Math.max(this.last, this.end);
    this.version.value++;
  }

  /** Follow the end until the window is closed; goes on after a break. */
  async follow() {
    if (!this.source.follow) return;
    for (let wait = 500; !this.#stop.signal.aborted; wait = Math.min(wait * 2, 8000)) {
      try {
        const after = this.#pending.at(-1)?.seq ?? this.last;
        for await (const found of this.source.follow(after, this.#stop.signal)) {
          wait = 500;
          this.failed.value = "";
          this.#pending.push(...found);
          this.#timer ||= setTimeout(() => this.#flush(), FLUSH_MS);
        }
        return;
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        if (error.status && error.status < 500) {
          this.failed.value = error.message;
          return;
        }
        this.failed.value = "The stream broke off; it is read on.";
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  #flush() {
    this.#timer = 0;
    const found = this.#pending;
    this.#pending = [];
    if (!found.length) return;
    const whole = this.end === this.last;
    this.last = found.at(-1).seq;
    if (this.live.value && whole) this.#set([...this.entries, ...found]);
    else this.version.value++;
  }

  /** What is made of entries beside them, read by chunks as it is looked at; `read(after, limit)` gives
   * `{frames}`, `place(frame)` the seqs that a frame belongs to. */
  beside(read, place) {
    return new Beside(this, read, place);
  }
}

class Beside {
  version = signal(0);
  failed = signal("");
  #chunks = new Map();
  #busy = false;
  #wanted = null;
  #refused = false;
  #again = 0;

  constructor(log, read, place) {
    Object.assign(this, { log, read, place });
  }

  /** The frames of a seq, undefined where they are not read yet. */
  of(seq) {
    return this.#chunks.get(Math.floor((seq - 1) / CHUNK))?.frames.get(seq);
  }

  /** Say which seqs are looked at; what is missing of them is read, one piece at a time. */
  want(first, last) {
    this.#wanted = [first, last];
    if (!this.#busy && !this.#refused && performance.now() >= this.#again) this.#work();
  }

  async #work() {
    this.#busy = true;
    for (let next; (next = this.#next()) !== null; ) {
      const after = next * CHUNK;
      const end = Math.min(after + CHUNK, this.log.last);
      try {
        const frames = new Map();
        for (let seq = after + 1; seq <= end; seq++) frames.set(seq, []);
        for (let at = after; at !== null && at < end; ) {
          const { frames: found, next } = await this.read(at, end - at);
          for (const frame of found) for (const seq of this.place(frame)) frames.get(seq)?.push(frame);
          at = next;
        }
        this.#chunks.delete(next);
        this.#chunks.set(next, { frames, end });
        if (this.#chunks.size > CHUNKS) this.#chunks.delete(this.#chunks.keys().next().value);
        this.failed.value = "";
        this.version.value++;
      } catch (error) {
        this.failed.value = error.message;
        // What the key may not see it will not see the next time either.
        this.#refused = error.status >= 400 && error.status < 500;
        this.#again = performance.now() + 2000;
        if (error.status !== 503) break;
        // A long log is read in a dialect for the first time: it says how far.
        await new Promise((resolve) => setTimeout(resolve, 1000));
        if (this.log.closed) break;
        continue;
      }
      // The end of a fast log moves on while it is looked at.
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
    this.#busy = false;
  }

  #next() {
    const [first, last] = this.#wanted;
    for (let at = Math.floor((last - 1) / CHUNK); at >= Math.floor((first - 1) / CHUNK); at--) {
      const end = Math.min((at + 1) * CHUNK, this.log.last);
      if ((this.#chunks.get(at)?.end ?? 0) < end) return at;
    }
    return null;
  }
}
