import { existsSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { ietf, jobs, payments, resources, stripe, traces, writes } from '../contracts/index.ts'
import { type GateOptions, parseRoutes } from '../gate/gate.ts'
import type { Store } from '../store.ts'
import { Misuse } from './command.ts'
import type { Settings } from './settings.ts'

/** `jobs` asks a reconcile hook after a crash, and a gate has none. */
const CONTRACTS: Readonly<Record<string, Contract>> = {
  ...{ ietf, stripe, traces, resources, writes, payments },
  jobs: defineContract(jobs, { crash: 'refuse' }),
}

/** The settings as the gate takes them. What cannot be meant is a `Misuse` that names the setting. */
export function gateOptions(settings: Settings, store: Store): GateOptions {
  const { upstream, principal, routes, host, port, shadow } = settings
  const contract = contractOf(settings.contract)
  return {
    upstream: upstreamOf(upstream),
    store,
    host,
    port,
    principal: principalOf(principal),
    contract,
    ...(routes !== undefined && { routes: parseRoutes(readJson('--routes', routes), CONTRACTS, contract) }),
    ...(shadow && { shadow }),
  }
}

function upstreamOf(upstream: string | undefined): string {
  if (upstream === undefined)
    throw new Misuse('--upstream is missing: say which service is behind the gate, http://host:port.')
  if (URL.canParse(upstream) && /^https?:$/.test(new URL(upstream).protocol)) return upstream
  throw new Misuse(`--upstream is ${JSON.stringify(upstream)}, but must be an address such as http://127.0.0.1:3000.`)
}

function principalOf(said: string | undefined): GateOptions['principal'] {
  if (said === 'public' || said === undefined) {
    if (said === 'public') return 'public'
    throw new Misuse(
      '--principal is missing: say whose a key is, so that no caller gets another’s answer: header:NAME, jwt-claim:NAME or mtls; or public, if all callers share one namespace.',
    )
  }
  if (said === 'mtls') return { kind: 'mtls' }
  const [, kind, name] = /^(header|jwt-claim):(.+)$/.exec(said) ?? []
  if (name !== undefined) return { kind: kind as 'header' | 'jwt-claim', name }
  throw new Misuse(`--principal is ${JSON.stringify(said)}; give public, header:NAME, jwt-claim:NAME or mtls.`)
}

export function contractOf(said: string): Contract {
  const known = Object.hasOwn(CONTRACTS, said) ? CONTRACTS[said] : undefined
  if (known !== undefined) return known
  if (!said.endsWith('.json')) {
    throw new Misuse(
      `--contract is ${JSON.stringify(said)}; give ${Object.keys(CONTRACTS).join(', ')}, or a .json file.`,
    )
  }
  return defineContract(ietf, { name: said, ...(readJson('--contract', said) as object) })
}

function readJson(flag: string, file: string): unknown {
  const path = resolve(file)
  if (!existsSync(path)) throw new Misuse(`${flag} is ${JSON.stringify(file)}, but there is no such file.`)
  try {
    return JSON.parse(readFileSync(path, 'utf8'))
  } catch (error) {
    throw new Misuse(`${file} does not parse as JSON: ${(error as Error).message}`)
  }
}
