import type { ContractChanges } from '../../contract-check.ts'
import type { Claim, ClaimRequest, RecordState, Settlement } from '../../store.ts'
import type { Planted } from './mistake.ts'
import { type ModelRow, ModelStore } from './model-store.ts'
import { EPOCH_MS } from './scheduler.ts'

/** The reference store with one thing wrong in each. */

class UnfencedSettle extends ModelStore {
  override settle(id: string, _token: string, settlement: Settlement): boolean {
    const row = this.live(id)
    if (row && !row.settlement) this.keep(row, settlement)
    return row !== undefined
  }
}

class UnfencedRelease extends ModelStore {
  override release(id: string): boolean {
    return this.forget(id)
  }
}

/** The owner before may have acted; the record of that goes with the takeover that did nothing. */
class ForgetfulRelease extends ModelStore {
  override release(id: string, token: string): boolean {
    const row = this.live(id)
    return row?.token === token && !row.settlement && this.forget(id)
  }
}

class UnfencedRenew extends ModelStore {
  override renew(id: string, token: string, leaseMs: number): boolean {
    return super.renew(id, this.live(id)?.token ?? token, leaseMs)
  }
}

class RacyClaim extends ModelStore {
  override async claim(request: ClaimRequest): Promise<Claim> {
    const row = this.live(request.id)
    if (row) return super.claim(request)
    await new Promise<void>((resolve) => this.clock.schedule(3, resolve))
    return this.insert(request)
  }
}

class LiveTakeover extends ModelStore {
  override claim(request: ClaimRequest): ReturnType<ModelStore['claim']> {
    const row = this.live(request.id)
    const isMine = row?.token === request.token
    if (row && !row.settlement && !isMine && row.fingerprint === request.fingerprint) return this.takeOver(row, request)
    return super.claim(request)
  }
}

class ForeignTakeover extends ModelStore {
  override claim(request: ClaimRequest): ReturnType<ModelStore['claim']> {
    const row = this.live(request.id)
    const isLapsed = row && !row.settlement && this.clock.now() >= row.leaseUntil
    if (row && isLapsed) row.fingerprint = request.fingerprint
    return super.claim(request)
  }
}

class SilentTakeover extends ModelStore {
  protected override takeOver(row: ModelRow, request: ClaimRequest): Claim {
    super.takeOver(row, request)
    row.attempt = 1
    return { state: 'acquired', attempt: 1 }
  }
}

class SelfCollision extends ModelStore {
  override claim(request: ClaimRequest): ReturnType<ModelStore['claim']> {
    const row = this.live(request.id)
    return row && !row.settlement && row.token === request.token ? this.state(row) : super.claim(request)
  }
}

class OverwritingSettle extends ModelStore {
  override settle(id: string, token: string, settlement: Settlement): boolean {
    const row = this.live(id)
    if (!row?.settlement) return super.settle(id, token, settlement)
    this.keep(row, settlement)
    return true
  }
}

class BlindReplay extends ModelStore {
  override claim(request: ClaimRequest): ReturnType<ModelStore['claim']> {
    const row = this.live(request.id)
    return row?.settlement ? { ...this.state(row), fingerprint: request.fingerprint } : super.claim(request)
  }
}

class MergedHeaders extends ModelStore {
  protected override state(row: ModelRow): RecordState {
    const state = super.state(row)
    if (state.state !== 'settled') return state
    return { ...state, answer: { ...state.answer, headers: [...new Map(state.answer.headers)] } }
  }
}

/** The row is looked at, but not its time. */
class Immortal extends ModelStore {
  protected override state(row: ModelRow): RecordState {
    if (!row.settlement) return super.state(row)
    const { outcome, answer } = row.settlement
    return { state: 'settled', fingerprint: row.fingerprint, outcome, answer, expiresInMs: 1 }
  }

  protected override live(id: string): ModelRow | undefined {
    return this.rows.get(id)
  }
}

/** A cache with room for one. */
class Evicting extends ModelStore {
  protected override insert(request: ClaimRequest): Claim {
    this.rows.clear()
    return super.insert(request)
  }
}

const CLOSED: ContractChanges = { storeFailure: 'closed' }
const REFUSE: ContractChanges = { ...CLOSED, crash: 'refuse' }
const RERUN: ContractChanges = { ...CLOSED, crash: 'rerun' }
const SHORT_LEASE = { ms: 100, handlerMsMax: 1_000 }

export const PLANTED_STORES: readonly Planted[] = [
  {
    name: 'no fence on settle',
    caughtBy: ['one-answer', 'kept-is-kept', 'takeover-told'],
    contract: RERUN,
    store: ({ clock }) => new UnfencedSettle(clock),
  },
  {
    name: 'no fence on release',
    caughtBy: ['at-most-once', 'live-owner', 'kept-is-kept'],
    contract: REFUSE,
    store: ({ clock }) => new UnfencedRelease(clock),
  },
  {
    name: 'release after a takeover forgets the owner before',
    caughtBy: ['reconcile-once', 'takeover-told'],
    contract: { ...CLOSED, crash: 'reconcile' },
    store: ({ clock }) => new ForgetfulRelease(clock),
  },
  {
    name: 'no fence on renew',
    caughtBy: ['signal-aborts', 'live-owner'],
    contract: { ...RERUN, lease: SHORT_LEASE },
    store: ({ clock }) => new UnfencedRenew(clock),
  },
  {
    name: 'racy claim: get, then set',
    caughtBy: ['at-most-once', 'live-owner', 'one-payload'],
    contract: REFUSE,
    store: ({ clock }) => new RacyClaim(clock),
  },
  {
    name: "the application's clock decides expiry",
    caughtBy: [
      'at-most-once',
      'live-owner',
      'kept-is-kept',
      'one-payload',
      'takeover-told',
      'key-free',
      'replay-fresh',
    ],
    contract: CLOSED,
    store: ({ clock, callerNow }) =>
      new ModelStore({ now: callerNow, schedule: (delayMs, callback) => clock.schedule(delayMs, callback) }),
  },
  {
    name: 'takeover of a live lease',
    caughtBy: ['live-owner'],
    contract: RERUN,
    store: ({ clock }) => new LiveTakeover(clock),
  },
  {
    name: 'takeover with another payload',
    caughtBy: ['one-payload'],
    contract: RERUN,
    store: ({ clock }) => new ForeignTakeover(clock),
  },
  {
    name: 'takeover that calls itself the first attempt',
    caughtBy: ['takeover-told', 'reconcile-once'],
    contract: RERUN,
    store: ({ clock }) => new SilentTakeover(clock),
  },
  {
    name: 'claim collides with itself after a lost reply',
    caughtBy: ['no-shadow'],
    store: ({ clock }) => new SelfCollision(clock),
  },
  {
    name: 'settle overwrites a settled record',
    caughtBy: ['one-answer', 'kept-is-kept'],
    contract: RERUN,
    store: ({ clock }) => new OverwritingSettle(clock),
  },
  {
    name: 'replay whatever the fingerprint',
    caughtBy: ['replay-exact', 'kept-is-kept'],
    store: ({ clock }) => new BlindReplay(clock),
  },
  {
    name: 'repeated headers are merged',
    caughtBy: ['replay-exact', 'kept-is-kept'],
    store: ({ clock }) => new MergedHeaders(clock),
  },
  {
    name: 'an expired record is served, or blocks for ever',
    caughtBy: ['replay-fresh', 'key-free'],
    store: ({ clock }) => new Immortal(clock),
  },
  {
    name: 'a full cache evicts what is running',
    caughtBy: ['at-most-once', 'live-owner', 'kept-is-kept', 'one-payload'],
    contract: REFUSE,
    store: ({ clock }) => new Evicting(clock),
  },
  {
    name: 'expiry in seconds, not milliseconds',
    caughtBy: ['kept-is-kept', 'at-most-once', 'one-payload', 'replay-fresh'],
    contract: REFUSE,
    store: ({ clock }) =>
      new ModelStore({
        now: () => EPOCH_MS + (clock.now() - EPOCH_MS) * 1_000,
        schedule: (delayMs, callback) => clock.schedule(delayMs, callback),
      }),
  },
]
