import type { Clock } from '../clock.ts'

/** Time that passes only when a test says so. */
export interface ManualClock extends Clock {
  /** Moves on, ringing every timer that falls due, in order; lets what each one started run before the next. */
  advance(ms: number): Promise<void>
}

export function manualClock(startMs: number = Date.UTC(2026, 0, 1)): ManualClock {
  let nowMs = startMs
  let timers: Timer[] = []
  return {
    now: () => nowMs,
    schedule(delayMs, callback) {
      const timer = { dueAt: nowMs + Math.max(0, delayMs), callback }
      timers.push(timer)
      return () => {
        timers = timers.filter((other) => other !== timer)
      }
    },
    async advance(ms) {
      const untilMs = nowMs + ms
      for (;;) {
        await settled()
        const next = timers.filter(({ dueAt }) => dueAt <= untilMs).sort((a, b) => a.dueAt - b.dueAt)[0]
        if (!next) break
        timers = timers.filter((timer) => timer !== next)
        nowMs = Math.max(nowMs, next.dueAt)
        next.callback()
      }
      nowMs = untilMs
      await settled()
    },
  }
}

interface Timer {
  readonly dueAt: number
  readonly callback: () => void
}

/** One turn of the event loop: every promise that could go on has. */
function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
