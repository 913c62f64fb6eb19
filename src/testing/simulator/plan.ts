import type { Contract } from '../../contract.ts'
import { type ContractChanges, defineContract } from '../../contract-check.ts'
import { ietf } from '../../contracts/ietf.ts'
import type { Random } from './random.ts'

/** What a seed chose for its schedule: the contract under test, the load, and what goes wrong. */
export interface Plan {
  readonly contract: Contract
  readonly storeMsMax: number
  readonly processes: number
  readonly keys: number
  readonly clients: number
  /** `direct`: the store answers at once, in the same process, as the memory store does. */
  readonly link: 'network' | 'direct'
  /** Whether the store tells of changes, or must be asked. */
  readonly push: boolean
  readonly faults: Faults
}

/** How often each thing goes wrong: per cent of store calls, or how many times in the schedule. */
export interface Faults {
  readonly lostPercent: number
  readonly replyLostPercent: number
  readonly latePercent: number
  readonly twicePercent: number
  readonly crashes: number
  readonly pauses: number
  readonly clockJumps: number
  readonly storeClockJumps: number
  readonly outages: number
  /** One process alone cannot reach the store. */
  readonly partitions: number
}

/** Faults and clients' first attempts happen before this; afterwards everything must come to rest. */
export const ACTIVE_MS = 4_000
export const LATE_MS_MAX = 1_500
export const PAUSE_MS_MAX = 1_500
export const CLOCK_JUMP_MS_MAX = 5_000
export const OUTAGE_MS_MAX = 800
export const PARTITION_MS_MAX = 1_500
/** An ordinary message takes this long at most, one way. */
export const HOP_MS_MAX = 4

/** Longer than any claim can take to reach its handler, so that a record is never forgotten before its run began. */
const UNKNOWN_MS_CHOICES = [6_000, 12_000, 60_000] as const

export function makePlan(random: Random, changes: ContractChanges = {}): Plan {
  const isDirect = random.chance(8)
  const crashy = random.fork(1)
  const contract = makeContract(random.fork(2), changes)
  return {
    contract,
    // The engine refuses a patience of half a lease or more.
    storeMsMax: Math.min(random.pick([40, 100, 300]), Math.floor(contract.lease.ms * 0.45)),
    processes: random.between(1, 3),
    keys: random.pick([1, 1, 2, 3]),
    clients: random.between(2, 5),
    link: isDirect ? 'direct' : 'network',
    push: random.chance(50),
    faults: random.chance(15) ? CALM : makeFaults(crashy, isDirect),
  }
}

function makeContract(random: Random, changes: ContractChanges): Contract {
  const leaseMs = random.pick([100, 200, 400, 1_000])
  const inFlight = random.pick(['reject', 'wait'] as const)
  const chosen = defineContract(ietf, {
    name: 'simulated',
    inFlight,
    waitMsMax: inFlight === 'wait' ? random.between(20, 100) : 0,
    ttl: {
      committedMs: random.pick([300, 1_000, 5_000, 60_000]),
      rejectedMs: random.pick([300, 1_000, 5_000]),
      unknownMs: random.pick(UNKNOWN_MS_CHOICES),
      expiredMs: random.pick([0, 0, 500, 5_000]),
    },
    lease: { ms: leaseMs, handlerMsMax: leaseMs * random.pick([1, 3, 10]) },
    crash: random.pick(['refuse', 'refuse', 'rerun', 'reconcile'] as const),
    storeFailure: random.chance(85) ? 'closed' : 'open',
  })
  return defineContract(chosen, changes)
}

const CALM: Faults = {
  lostPercent: 0,
  replyLostPercent: 0,
  latePercent: 0,
  twicePercent: 0,
  crashes: 0,
  pauses: 0,
  clockJumps: 0,
  storeClockJumps: 0,
  outages: 0,
  partitions: 0,
}

/** Each kind is often absent altogether: a bug that needs one fault must not drown in the others. */
function makeFaults(random: Random, isDirect: boolean): Faults {
  const percent = (most: number) => (isDirect || random.chance(40) ? 0 : random.between(1, most))
  const times = (most: number) => (random.chance(50) ? 0 : random.between(1, most))
  return {
    lostPercent: percent(20),
    replyLostPercent: percent(20),
    latePercent: percent(10),
    twicePercent: percent(15),
    crashes: times(3),
    pauses: times(3),
    clockJumps: times(3),
    storeClockJumps: random.chance(10) ? random.between(1, 2) : 0,
    outages: times(2),
    partitions: isDirect ? 0 : times(3),
  }
}

export function describePlan({ contract, faults, ...rest }: Plan): string {
  const { lease, ttl, crash, inFlight, waitMsMax, storeFailure } = contract
  return [
    `contract  ${JSON.stringify({ crash, inFlight, waitMsMax, storeFailure, lease, ttl })}`,
    `load      ${JSON.stringify(rest)}`,
    `faults    ${JSON.stringify(faults)}`,
  ].join('\n')
}
