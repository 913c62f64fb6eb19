/** Time, injected: tests and the simulator bring their own. */
export interface Clock {
  /** Whole milliseconds since the epoch. */
  now(): number
  /** Calls back once, `delayMs` from now; must not keep a process alive on its own. Returns a canceller. */
  schedule(delayMs: number, callback: () => void): () => void
}

/** Never goes back, whatever happens to the machine's date while the process runs. */
export const systemClock: Clock = {
  now: () => Math.floor(performance.timeOrigin + performance.now()),
  schedule(delayMs, callback) {
    const timer = setTimeout(callback, delayMs)
    timer.unref?.()
    return () => clearTimeout(timer)
  },
}
