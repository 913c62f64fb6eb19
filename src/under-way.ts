/** How much is under way, and the moment when nothing is. A count and no set of promises; `LinkedList` says why. */
export class UnderWay {
  #count = 0
  #waiting: Array<() => void> = []

  get count(): number {
    return this.#count
  }

  begin(): void {
    this.#count++
  }

  end(): void {
    this.#count--
    if (this.#count === 0) for (const wake of this.#waiting.splice(0)) wake()
  }

  /** Counts it until it has ended, well or not. How it ended is for whoever takes the promise, and nobody has to. */
  during<T>(work: Promise<T>): Promise<T> {
    this.begin()
    const end = (): void => this.end()
    work.then(end, end)
    return work
  }

  /** Resolves when nothing is under way. */
  async idle(): Promise<void> {
    while (this.#count > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }
}
