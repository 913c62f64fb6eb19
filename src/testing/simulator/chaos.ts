import { ACTIVE_MS, CLOCK_JUMP_MS_MAX, OUTAGE_MS_MAX, PARTITION_MS_MAX, PAUSE_MS_MAX } from './plan.ts'
import type { Stage } from './stage.ts'

/** Everything that goes wrong besides single messages, at moments that the seed chooses. */
export function planFaults(stage: Stage): void {
  const { faults } = stage.plan
  const times = (count: number, act: () => void) => {
    for (let index = 0; index < count; index++) stage.scheduler.at(stage.chaos.between(1, ACTIVE_MS), act)
  }
  times(faults.crashes, () => crash(stage))
  times(faults.pauses, () => pause(stage))
  times(faults.clockJumps, () => jump(stage))
  times(faults.storeClockJumps, () => jumpStore(stage))
  times(faults.outages, () => breakStore(stage))
  times(faults.partitions, () => cut(stage))
  stage.scheduler.at(ACTIVE_MS, () => {
    stage.isFaulty = false
    stage.trace(() => 'from here on messages arrive')
  })
}

function crash(stage: Stage): void {
  const slot = stage.anySlot(stage.chaos)
  const process = slot?.process
  if (!slot || !process) return
  process.crash()
  stage.see('process-crashed')
  stage.trace(() => `${process.name}: CRASHES`)
  slot.process = undefined
  stage.scheduler.at(stage.chaos.between(0, 500), () => stage.start(slot))
}

function pause(stage: Stage): void {
  const process = stage.anySlot(stage.chaos)?.process
  if (!process) return
  const durationMs = stage.chaos.between(10, PAUSE_MS_MAX)
  const isSuspended = stage.chaos.chance(40)
  stage.see(isSuspended ? 'process-suspended' : 'process-paused')
  stage.trace(() => `${process.name}: is ${isSuspended ? 'SUSPENDED, with its clock,' : 'PAUSED'} for ${durationMs} ms`)
  process.pause(durationMs, isSuspended)
}

function jump(stage: Stage): void {
  const process = stage.anySlot(stage.chaos)?.process
  if (!process) return
  const byMs = stage.chaos.between(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
  stage.see('clock-jumped')
  stage.trace(() => `${process.name}: its clock JUMPS by ${byMs} ms`)
  const { contract, storeMsMax } = stage.plan
  process.jump(byMs, contract.inFlight === 'wait' ? Math.abs(byMs) : CALLS_MAX * storeMsMax)
}

function cut(stage: Stage): void {
  const process = stage.anySlot(stage.chaos)?.process
  if (!process) return
  const durationMs = stage.chaos.between(50, PARTITION_MS_MAX)
  stage.see('partitioned')
  stage.trace(() => `${process.name}: is CUT OFF from the store for ${durationMs} ms`)
  process.cut(durationMs)
}

function jumpStore(stage: Stage): void {
  const byMs = stage.chaos.between(1, STORE_JUMP_MS_MAX)
  stage.see('store-clock-jumped')
  stage.trace(() => `store: its clock JUMPS by ${byMs} ms`)
  stage.history.storeJumps.push({ atMs: stage.scheduler.nowMs, byMs })
  stage.storeClock.aheadMs += byMs
  for (const { process } of stage.slots) process?.fault(0)
}

function breakStore(stage: Stage): void {
  if (stage.outage !== 'none') return
  stage.outage = stage.chaos.pick(['errors', 'hangs'])
  stage.trace(() => `store: DOWN (${stage.outage})`)
  stage.scheduler.at(stage.chaos.between(10, OUTAGE_MS_MAX), () => {
    stage.outage = 'none'
    stage.trace(() => 'store: up again')
  })
}

const STORE_JUMP_MS_MAX = 3_000
/** Each call of the store in one `execute` may take twice its time when the clock is set back meanwhile. */
const CALLS_MAX = 3
