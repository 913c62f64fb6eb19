import { ACTIVE_MS, LATE_MS_MAX, PAUSE_MS_MAX } from './plan.ts'
import type { Stage } from './stage.ts'
import { HANDLER_MS_MAX } from './workload.ts'

/** A client retries one operation a few times, at any process, and does not always wait for the answer. */
export function startClient(stage: Stage, name: string): void {
  const random = stage.clients
  const key = `k${random.between(1, stage.plan.keys)}`
  const fingerprint = random.chance(85) ? 'same' : 'other'
  let left = random.between(1, 5)
  const next = () => {
    if (left-- <= 0 || stage.scheduler.nowMs >= ACTIVE_MS) return
    const slot = stage.anySlot(random)
    let hasGoneOn = false
    const goOn = () => {
      if (hasGoneOn) return
      hasGoneOn = true
      stage.scheduler.at(random.between(0, random.pick([5, 100, 800])), next)
    }
    if (!slot) return goOn()
    const copies = random.chance(15) ? random.between(4, 8) : 1
    for (let copy = 0; copy < copies; copy++) stage.call(slot, name, key, fingerprint, undefined, goOn)
    // Patience: a client that has heard nothing asks again, while the first request goes on.
    stage.scheduler.at(random.between(20, random.pick([100, 1_500])), goOn)
  }
  next()
}

/** Asks until the answer is final. */
export function startProbe(stage: Stage, key: string, probe: 'soon' | 'late', sinceMs: number): void {
  const slot = stage.slots[0]
  if (!slot?.process) throw new Error('a process did not come up again after its crash')
  stage.call(slot, 'probe', key, 'same', probe, (result) => {
    const isOpen = result?.kind === 'refused' && ['in-flight', 'store-unavailable'].includes(result.refusal.code)
    if (!isOpen || stage.scheduler.nowMs - sinceMs > PROBE_MS_MAX) return
    stage.scheduler.at(PROBE_EVERY_MS, () => startProbe(stage, key, probe, sinceMs))
  })
}

/** By then every late message has arrived, every pause is over, and every run of the active time has ended. */
export const REST_MS: number = ACTIVE_MS + LATE_MS_MAX + PAUSE_MS_MAX + HANDLER_MS_MAX
const PROBE_EVERY_MS = 100
/** Two leases of the longest kind, and the longest handler. */
export const PROBE_MS_MAX: number = 2_000 + HANDLER_MS_MAX
