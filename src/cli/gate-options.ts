import { createPublicKey, type KeyObject } from 'node:crypto'
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
  const { upstream, routes, host, port, shadow } = settings
  const contract = contractOf(settings.contract)
  return {
    upstream: upstreamOf(upstream),
    store,
    host,
    port,
    principal: principalOf(settings),
    contract,
    ...(routes !== undefined && { routes: parseRoutes(readJson('--routes', routes), CONTRACTS, contract) }),
    ...(shadow && { shadow }),
    ...tlsOf(settings),
  }
}

function upstreamOf(upstream: string | undefined): string {
  if (upstream === undefined)
    throw new Misuse('--upstream is missing: say which service is behind the gate, http://host:port.')
  if (URL.canParse(upstream) && /^https?:$/.test(new URL(upstream).protocol)) return upstream
  throw new Misuse(`--upstream is ${JSON.stringify(upstream)}, but must be an address such as http://127.0.0.1:3000.`)
}

/** Whether anybody could make up a token that is believed. */
export function believesTokens({ principal, jwtKey }: Settings): boolean {
  return principal?.startsWith(JWT_CLAIM) === true && jwtKey === undefined
}

const JWT_CLAIM = 'jwt-claim:'

function principalOf({ principal: said, jwtKey }: Settings): GateOptions['principal'] {
  if (jwtKey !== undefined && said !== undefined && !said.startsWith(JWT_CLAIM)) {
    throw new Misuse(`--jwt-key verifies tokens, but --principal is ${said}, which reads none; leave one of them out.`)
  }
  if (said === 'public' || said === undefined) {
    if (said === 'public') return 'public'
    throw new Misuse(
      '--principal is missing: say whose a key is, so that no caller gets another’s answer: header:NAME, jwt-claim:NAME or mtls; or public, if all callers share one namespace.',
    )
  }
  if (said === 'mtls') return { kind: 'mtls' }
  const [, kind, name] = /^(header|jwt-claim):(.+)$/.exec(said) ?? []
  if (kind === 'header' && name !== undefined && !HEADER_NAME.test(name)) {
    throw new Misuse(`--principal is ${JSON.stringify(said)}, but ${JSON.stringify(name)} is not a header name.`)
  }
  if (kind === 'header' && name !== undefined) return { kind, name }
  if (name !== undefined) {
    return { kind: 'jwt-claim', name, ...(jwtKey !== undefined && { key: readJwtKey(jwtKey) }) }
  }
  throw new Misuse(`--principal is ${JSON.stringify(said)}; give public, header:NAME, jwt-claim:NAME or mtls.`)
}

function tlsOf({ tlsCert, tlsKey, tlsCa, principal }: Settings): Pick<GateOptions, 'tls'> {
  if (principal === 'mtls' && tlsCa === undefined) {
    throw new Misuse('--principal is mtls, so say --tls-cert, --tls-key and --tls-ca, who has signed the clients’.')
  }
  if (tlsCert === undefined && tlsKey === undefined && tlsCa === undefined) return {}
  if (tlsCert === undefined || tlsKey === undefined) {
    throw new Misuse(`--tls-${tlsCert === undefined ? 'cert' : 'key'} is missing; TLS needs both, as PEM files.`)
  }
  const [cert, key] = [readPem('--tls-cert', tlsCert), readPem('--tls-key', tlsKey)]
  return { tls: { cert, key, ...(tlsCa !== undefined && { ca: readPem('--tls-ca', tlsCa) }) } }
}

function readPem(flag: string, file: string): string {
  const path = resolve(file)
  if (!existsSync(path)) throw new Misuse(`${flag} is ${JSON.stringify(file)}, but there is no such file.`)
  const text = readFileSync(path, 'utf8')
  if (text.includes('-----BEGIN ')) return text
  throw new Misuse(`${flag} is ${JSON.stringify(file)}, but there is no PEM in it (-----BEGIN …-----).`)
}

/** A public key as an object, or the secret as it stands in the file. Never repeats what it was given: that may be the key. */
function readJwtKey(file: string): KeyObject | string {
  const path = resolve(file)
  if (!existsSync(path)) {
    throw new Misuse('--jwt-key names no file that is there; give a file with a public key in PEM, or with the secret.')
  }
  const text = readFileSync(path, 'utf8').replace(/\r?\n$/, '')
  if (text === '') throw new Misuse(`--jwt-key is ${JSON.stringify(file)}, but the file is empty.`)
  if (!text.includes('-----BEGIN ')) return text
  const key = publicKeyIn(text)
  const { asymmetricKeyType: type, asymmetricKeyDetails: details } = key ?? {}
  if (key && (type === 'rsa' || (type === 'ec' && details?.namedCurve === 'prime256v1'))) return key
  throw new Misuse(
    `--jwt-key is ${JSON.stringify(file)}, but the PEM in it is no RSA or P-256 key; tokens are verified with RS256, RS384, RS512 or ES256.`,
  )
}

function publicKeyIn(pem: string): KeyObject | undefined {
  try {
    return createPublicKey(pem)
  } catch {
    return undefined
  }
}

const HEADER_NAME = /^[!#$%&'*+.^_`|~\dA-Za-z-]+$/

export function contractOf(said: string): Contract {
  const known = Object.hasOwn(CONTRACTS, said) ? CONTRACTS[said] : undefined
  if (known !== undefined) return known
  if (!said.endsWith('.json')) {
    throw new Misuse(
      `--contract is ${JSON.stringify(said)}; give ${Object.keys(CONTRACTS).join(', ')}, or a .json file.`,
    )
  }
  const fields = readJson('--contract', said)
  if (typeof fields !== 'object' || fields === null || Array.isArray(fields)) {
    throw new Misuse(`${said} must hold an object with fields of a contract, such as { "inFlight": "wait" }.`)
  }
  return defineContract(ietf, { name: said, ...fields })
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
