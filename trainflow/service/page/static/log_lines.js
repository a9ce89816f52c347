// The last lines of a log that comes in pieces. Pure.

const MOST_LINES = 500;
const MOST_IN_LINE = 2000;
const COLOURS = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;

/** Keeps the last lines of what it is given, however much that is. */
export class LastLines {
  #decoder = new TextDecoder();
  #lines = [];
  #rest = "";
  #isCut;

  /** Take whether the first line may lack its beginning: it is left out then. */
  constructor(isCut) {
    this.#isCut = isCut;
  }

  /** Take the next bytes; they may end within a character or a line. */
  push(bytes) {
    this.#take(this.#decoder.decode(bytes, { stream: true }));
  }

  /** Say that something is missing here. */
  skip(numBytes) {
    this.#take(this.#decoder.decode());
    this.#decoder = new TextDecoder();
    this.#isCut = false;
    this.#take(`${this.#rest === "" ? "" : "\n"}… ${numBytes} bytes are gone …\n`);
    this.#isCut = true;
  }

  /** The lines as one text; what follows the last line's end is there, too. */
  get text() {
    return [...this.#lines, writeLine(this.#rest)].join("\n");
  }

  #take(text) {
    const lines = (this.#rest + text).split("\n");
    const rest = lines.pop();
    if (this.#isCut && lines.length > 0) {
      lines.shift();
      this.#isCut = false;
    }
    // Of a line that never ends its newest part is kept.
    this.#rest = rest.slice(-2 * MOST_IN_LINE);
    this.#lines = [...this.#lines, ...lines.slice(-MOST_LINES).map(writeLine)].slice(-MOST_LINES);
  }
}

/** Return a line as a terminal would leave it: without colours, what was overwritten left out. */
export function writeLine(line) {
  const plain = line.replaceAll(COLOURS, "").replace(/\r+$/, "");
  const left = plain.slice(plain.lastIndexOf("\r") + 1);
  return left.length > MOST_IN_LINE ? `${left.slice(0, MOST_IN_LINE)} …` : left;
}
