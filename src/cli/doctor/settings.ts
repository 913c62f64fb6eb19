import type { Contract } from '../../contract.ts'
import { gateLimits } from '../../gate/limits.ts'
import type { Store } from '../../store.ts'
import { believesTokens, gateOptions } from '../gate-options.ts'
import { duration } from '../records.ts'
import type { Settings } from '../settings.ts'
import { type Finding, fail, ok, warn } from './finding.ts'

/** What can be seen without asking anybody. Throws a `Misuse` for settings that cannot be meant at all. */
export function judgeSettings(settings: Settings, retryWindowMs: number): readonly Finding[] {
  const { upstream = 'http://127.0.0.1', principal = 'public' } = settings
  // Without a principal there is nothing to verify yet; that it is missing is a finding of its own.
  const jwtKey = settings.principal === undefined ? undefined : settings.jwtKey
  const { contract, routes = [] } = gateOptions({ ...settings, upstream, principal, jwtKey }, NO_STORE)
  const upstreamMsMax = gateLimits().upstreamMsMax
  const places = [
    { name: 'everywhere else', contract, upstreamMsMax },
    ...routes.map(({ template, methods, contract: own = contract, limits }) => ({
      name: `${methods?.join(', ') ?? 'any method'} ${template}`,
      contract: own,
      upstreamMsMax: limits?.upstreamMsMax ?? upstreamMsMax,
    })),
  ]
  const said = places.flatMap((place) => {
    if (place.contract === undefined) return []
    const where = places.length > 1 ? ` (${place.name})` : ''
    return [
      judgeTtl(place.contract, retryWindowMs, where),
      judgeLease(place.contract, place.upstreamMsMax, where),
      ...judgeStoreFailure(place.contract, where),
    ]
  })
  return [judgeNode(process.versions.node), judgePrincipal(settings), judgeWorkers(settings), ...said]
}

const NO_STORE = { name: 'none' } as Store

const NODE_MIN = [22, 13] as const

export function judgeNode(version: string): Finding {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  const isEnough = major > NODE_MIN[0] || (major === NODE_MIN[0] && minor >= NODE_MIN[1])
  if (isEnough) return ok('node', `Node ${version}`)
  return fail(
    'node',
    `Node ${version}`,
    'node:sqlite and more are missing or behave differently; nothing is tested there.',
    `Use Node ${NODE_MIN.join('.')} or later.`,
  )
}

function judgePrincipal(settings: Settings): Finding {
  const { principal: said } = settings
  if (said === undefined) {
    return fail(
      'principal',
      'Nothing says whose a key is.',
      'Two callers with the same key would get each other’s answers; the gate does not start like this.',
      'Say --principal header:NAME, jwt-claim:NAME or mtls; public if all callers share one namespace. In code: the principal option.',
    )
  }
  if (said === 'public') {
    return warn(
      'principal',
      'public: all callers share one namespace of keys.',
      'Whoever guesses a key of somebody else gets that answer. Right for a single client, or for keys that nobody can guess.',
      'Say --principal header:NAME, jwt-claim:NAME or mtls if there is more than one caller.',
    )
  }
  if (said === 'mtls') return ok('principal', 'mtls: the subject of the client’s verified certificate')
  if (said.startsWith('jwt-claim:') && !believesTokens(settings)) {
    return ok('principal', `${said}: from a token whose signature is verified`)
  }
  if (believesTokens(settings)) {
    return warn(
      'principal',
      `${said}: believed as it comes, for no key verifies the token’s signature.`,
      'Whoever reaches the gate can make up a token with any name in it, and get that one’s answers.',
      'Say --jwt-key FILE, a public key in PEM or the secret; or let only an authenticating proxy reach the gate.',
    )
  }
  return warn(
    'principal',
    `${said}: believed as it comes.`,
    'The gate does not verify it: whoever reaches the gate past your authentication can write any name there.',
    'Let only an authenticating proxy reach the gate, and let that set it anew on every request.',
  )
}

function judgeWorkers({ store, workers }: Settings): Finding {
  const id = 'memory'
  if (!store.startsWith('memory:')) return ok(id, `The records are in ${store.split(':', 1)[0]}, not in a process.`)
  if (workers > 1) {
    return fail(
      id,
      `${workers} workers, each with records in its own memory.`,
      'A retry that reaches another worker runs again.',
      'Use --store sqlite:PATH, which workers of one machine share, or a server.',
    )
  }
  return warn(
    id,
    'The records are in the memory of one process.',
    'A restart forgets every key, and a second process knows nothing of the first one’s: retries then run again.',
    'Use --store sqlite:PATH, or a server, for anything but tests.',
  )
}

function judgeTtl({ ttl, name }: Contract, retryWindowMs: number, where: string): Finding {
  const id = 'ttl'
  const window = duration(retryWindowMs)
  const [least, field] = [
    [ttl.committedMs + ttl.expiredMs, 'committedMs'] as const,
    [ttl.rejectedMs + ttl.expiredMs, 'rejectedMs'] as const,
    [ttl.unknownMs, 'unknownMs'] as const,
  ].reduce((a, b) => (b[0] < a[0] ? b : a))
  if (least < retryWindowMs) {
    return fail(
      id,
      `Contract ${name}${where} forgets a key after ${duration(least)} (ttl.${field}), but clients may retry for ${window}.`,
      'A retry that comes later than that is taken for a new operation, and runs again.',
      `Set ttl.${field} to at least ${retryWindowMs}, or say --retry-window if your clients give up sooner.`,
    )
  }
  if (ttl.committedMs < retryWindowMs) {
    return warn(
      id,
      `Contract ${name}${where} keeps answers for ${duration(ttl.committedMs)}, and refuses the key after that; clients may retry for ${window}.`,
      'A late retry does not run again, but does not get its answer either.',
      `Set ttl.committedMs to at least ${retryWindowMs} if clients need it.`,
    )
  }
  return ok(id, `Contract ${name}${where} remembers a key for ${duration(least)}; clients may retry for ${window}.`)
}

const LEASE_MS_LOW = 5_000
const LEASE_MS_HIGH = 600_000

function judgeLease({ lease, name }: Contract, upstreamMsMax: number, where: string): Finding {
  const id = 'lease'
  if (lease.handlerMsMax < upstreamMsMax) {
    return warn(
      id,
      `Contract ${name}${where} holds a lease for ${duration(lease.handlerMsMax)} at most (lease.handlerMsMax), but the service may take ${duration(upstreamMsMax)}.`,
      'An operation that takes longer is given up as unknown while the service still works on it.',
      `Set lease.handlerMsMax to at least ${upstreamMsMax}, or limits.upstreamMsMax of the route to less.`,
    )
  }
  if (lease.ms < LEASE_MS_LOW) {
    return warn(
      id,
      `Contract ${name}${where} has leases of ${lease.ms} ms.`,
      'A process that stands still for longer, as in a busy moment, loses its lease, and the operation becomes unknown.',
      `Set lease.ms to ${LEASE_MS_LOW} or more.`,
    )
  }
  if (lease.ms > LEASE_MS_HIGH) {
    return warn(
      id,
      `Contract ${name}${where} has leases of ${duration(lease.ms)}.`,
      'After a crash retries are told for as long that the operation is still running.',
      'Leases are renewed while an operation runs, so they need not be long: set lease.ms to 30000.',
    )
  }
  return ok(id, `Contract ${name}${where} has leases of ${duration(lease.ms)}, renewed while the service works.`)
}

function judgeStoreFailure({ storeFailure, name }: Contract, where: string): readonly Finding[] {
  if (storeFailure === 'closed') return []
  return [
    warn(
      'store-failure',
      `Contract ${name}${where} lets requests through when the store cannot be reached (storeFailure: open).`,
      'During an outage of the store every retry runs again.',
      'Set storeFailure to closed where a second run costs more than a refusal.',
    ),
  ]
}
