/** A stream of choices that depends on nothing but its seed: the same on every machine and in every run. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed | 0
  }

  /** An independent stream: what is drawn from it never shifts what is drawn from this one. */
  fork(stream: number): Random {
    return new Random(mix(Math.imul(this.#state ^ stream, 0x9e3779b1) + stream))
  }

  /** 0 to 2^32 − 1: a counter with a large odd step, scrambled. */
  uint32(): number {
    this.#state = (this.#state + 0x9e3779b9) | 0
    return mix(this.#state)
  }

  /** `least` to `most`, both included. */
  between(least: number, most: number): number {
    return least + Math.floor((this.uint32() / 2 ** 32) * (most - least + 1))
  }

  chance(percent: number): boolean {
    return this.uint32() / 2 ** 32 < percent / 100
  }

  pick<T>(choices: readonly [T, ...T[]]): T {
    return choices[this.between(0, choices.length - 1)] ?? choices[0]
  }
}

function mix(value: number): number {
  let z = value
  z = Math.imul(z ^ (z >>> 16), 0x85ebca6b)
  z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35)
  return (z ^ (z >>> 16)) >>> 0
}
