import type { Clock } from '../../clock.ts'
import type { ProcessRecord } from './history.ts'
import { EPOCH_MS, type Scheduler } from './scheduler.ts'

/**
 * One life of a simulated process. Everything that happens inside it comes through `at`: after a crash nothing does any
 * more, and during a pause it is held back until the pause is over.
 */
export class SimProcess implements ProcessRecord {
  readonly name: string
  readonly faults: Array<{ readonly fromMs: number; readonly toMs: number }> = []
  readonly pauseEndsMs: number[] = []
  readonly jumpsMs: number[] = []
  readonly clock: Clock
  diedMs: number | undefined
  disturbedMs = 0
  readonly #scheduler: Scheduler
  #pausedUntilMs = 0
  #cutUntilMs = 0
  /** How long the process was suspended in all: its own clock and timers stood still meanwhile. */
  #suspendedMs = 0
  #skewMs: number

  constructor(scheduler: Scheduler, name: string, skewMs: number) {
    this.name = name
    this.#scheduler = scheduler
    this.#skewMs = skewMs
    this.clock = {
      now: () => EPOCH_MS + scheduler.nowMs + this.#skewMs - this.#suspendedMs,
      schedule: (delayMs, callback) => this.#timer(delayMs, callback),
    }
  }

  get isAlive(): boolean {
    return this.diedMs === undefined
  }

  /** Something reaches the process after `delayMs`, unless it is dead by then. */
  at(delayMs: number, act: () => void): void {
    const arrive = () => {
      if (!this.isAlive) return
      if (this.#scheduler.nowMs < this.#pausedUntilMs)
        this.#scheduler.at(this.#pausedUntilMs - this.#scheduler.nowMs, arrive)
      else act()
    }
    this.#scheduler.at(delayMs, arrive)
  }

  /** A partition: no message of this process reaches the store. */
  get isCut(): boolean {
    return this.#scheduler.nowMs < this.#cutUntilMs
  }

  cut(durationMs: number): void {
    this.#cutUntilMs = this.#scheduler.nowMs + durationMs
    this.fault(durationMs)
  }

  /** kill -9. */
  crash(): void {
    this.diedMs = this.#scheduler.nowMs
  }

  /** A long stop of everything in it. Suspended, its clock stands still too: it wakes up and has noticed nothing. */
  pause(durationMs: number, isSuspended: boolean): void {
    if (this.#scheduler.nowMs < this.#pausedUntilMs) return
    this.#pausedUntilMs = this.#scheduler.nowMs + durationMs
    this.pauseEndsMs.push(this.#pausedUntilMs)
    if (isSuspended) this.#suspendedMs += durationMs
    this.disturbedMs += durationMs * (isSuspended ? 2 : 1)
    this.fault(durationMs)
  }

  /** Somebody sets its date. Its timers go on as they were: a jump may cost `costMs`, however far it goes. */
  jump(byMs: number, costMs: number): void {
    this.#skewMs += byMs
    this.jumpsMs.push(this.#scheduler.nowMs)
    this.disturbedMs += costMs
    this.fault(0)
  }

  fault(durationMs: number): void {
    this.faults.push({ fromMs: this.#scheduler.nowMs, toMs: this.#scheduler.nowMs + durationMs })
  }

  #timer(delayMs: number, callback: () => void): () => void {
    let isCancelled = false
    let suspendedMs = this.#suspendedMs
    const ring = () => {
      if (isCancelled) return
      const stoodStillMs = this.#suspendedMs - suspendedMs
      suspendedMs = this.#suspendedMs
      if (stoodStillMs > 0) this.#scheduler.at(stoodStillMs, ring)
      else this.at(0, () => isCancelled || callback())
    }
    this.#scheduler.at(delayMs, ring)
    return () => {
      isCancelled = true
    }
  }
}
