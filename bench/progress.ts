/** A bar on stderr with the time that is left: redrawn in place on a terminal, one line for each tenth elsewhere. */
export class Progress {
  readonly #steps: number
  readonly #startedAt = performance.now()
  #done = 0
  #tenth = 0

  constructor(steps: number) {
    this.#steps = steps
  }

  step(what: string): void {
    this.#done++
    const share = this.#done / this.#steps
    const leftSeconds = Math.round((performance.now() - this.#startedAt) / 1000 / share - this.#elapsedSeconds())
    const filled = Math.round(share * BAR_LENGTH)
    const bar = '█'.repeat(filled) + '░'.repeat(BAR_LENGTH - filled)
    const line = `${bar} ${String(Math.floor(share * 100)).padStart(3)} %  ${clock(leftSeconds)} left  ${what}`
    if (process.stderr.isTTY) {
      process.stderr.write(`\r\x1b[2K${this.#done === this.#steps ? '' : line}`)
    } else if (Math.floor(share * 10) > this.#tenth) {
      this.#tenth = Math.floor(share * 10)
      process.stderr.write(`${line}\n`)
    }
  }

  #elapsedSeconds(): number {
    return (performance.now() - this.#startedAt) / 1000
  }
}

const BAR_LENGTH = 30

function clock(seconds: number): string {
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`
}
