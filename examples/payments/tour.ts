import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join, resolve } from 'node:path'
import { payments } from '../../src/contracts/index.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import type { Answered, Stage } from '../kit.ts'
import { startDaemon, TOKENS } from './daemon.ts'
import type { PaymentsExample } from './example.ts'
import { networkTo, spawnClient, spawnDaemon } from './processes.ts'
import { AUDIT_PATH, PAYMENTS_PATH } from './service.ts'

const CLI = resolve(import.meta.dirname, '../../src/cli/main.ts')
const DAY_MS = 86_400_000
const INVOICE = { nonce: 'n-1', amount: 1999, currency: 'EUR', payee: 'acme' }

/** Walks through S1 to S9. */
export async function tour(stage: Stage, example: PaymentsExample): Promise<void> {
  const scratch = mkdtempSync(join(tmpdir(), 'oncekey-tour-'))
  try {
    await keysAndBodies(stage, example)
    await keyThatExpires(stage, join(scratch, 'expiring'))
    await races(stage, example)
    await nonces(stage, example)
    await auditLog(stage, example, scratch)
    await crashes(stage, example, join(scratch, 'crashing'))
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
}

async function keysAndBodies(stage: Stage, { daemon }: PaymentsExample): Promise<void> {
  stage.scene('S1', 'A payment is asked for. Its identity: the key, and the SHA-256 of the body in RFC 8785 form')
  const first = await pay(stage, 'order-1', JSON.stringify(INVOICE))
  stage.holds(first.status === 200 && fieldOf(first, 'decision') === 'allow', 'it is decided')

  stage.scene('S1 S2', 'The client lost the answer and retries, with its fields in another order')
  const retry = await pay(stage, 'order-1', '{ "payee": "acme", "currency": "EUR", "amount": 1999.0, "nonce": "n-1" }')
  stage.holds(retry.text === first.text && isReplay(retry), 'the same decision, byte for byte')
  stage.holds(daemon.decisions.count() === 1, 'no new decision was made')

  stage.scene('S3', 'The same key for another amount')
  const conflict = await pay(stage, 'order-1', JSON.stringify({ ...INVOICE, amount: 500 }))
  stage.holds(
    isRefused(conflict, 'protocol.idempotency_conflict'),
    '409 protocol.idempotency_conflict, and nothing ran',
  )

  stage.scene('S4', 'A new key, the same payment under a fresh nonce: another operation')
  const second = await pay(stage, 'order-2', JSON.stringify({ ...INVOICE, nonce: 'n-2' }))
  const isAnother = fieldOf(second, 'decision_id') !== fieldOf(first, 'decision_id')
  stage.holds(second.status === 200 && !isReplay(second) && isAnother, 'the whole pipeline ran again')
}

async function keyThatExpires(stage: Stage, data: string): Promise<void> {
  stage.scene('S5', 'A key lives for IDEMPOTENCY_TTL_HOURS, 24 by default (here on a clock that the tour moves)')
  const clock = manualClock()
  const daemon = await startDaemon({ data, port: 0, contract: payments, clock })
  try {
    const path = `${daemon.url}${PAYMENTS_PATH}`
    await pay(stage, 'order-of-yesterday', JSON.stringify(INVOICE), path)
    await clock.advance(DAY_MS - 1)
    stage.say('24 hours less a millisecond later:')
    stage.holds(isReplay(await pay(stage, 'order-of-yesterday', JSON.stringify(INVOICE), path)), 'still replayed')
    await clock.advance(1)
    stage.say('and a millisecond more:')
    const anew = await pay(stage, 'order-of-yesterday', JSON.stringify({ ...INVOICE, nonce: 'n-2' }), path)
    stage.holds(anew.status === 200 && !isReplay(anew), 'the key is new')
  } finally {
    await daemon.stop()
  }
}

async function races(stage: Stage, { url, daemon }: PaymentsExample): Promise<void> {
  stage.scene('S6', 'Fifty at once, one key, one body')
  const before = daemon.decisions.count()
  const body = JSON.stringify({ ...INVOICE, nonce: 'n-race' })
  const all = await Promise.all(Array.from({ length: 50 }, () => post(url, 'race', body)))
  const texts = new Set(all.map(({ text }) => text))
  stage.say(`${all.length} answers, ${texts.size} different: ${[...texts][0]}`)
  stage.holds(texts.size === 1 && daemon.decisions.count() === before + 1, 'one execution, one shared decision')

  stage.scene('S6', 'Twenty races of one key with two bodies')
  const payee = 'small and many'
  const pairs = await Promise.all(
    Array.from({ length: 20 }, (_, i) =>
      Promise.all(
        [1, 2].map((amount) =>
          post(url, `pair-${i}`, JSON.stringify({ ...INVOICE, payee, amount, nonce: `n-pair-${i}-${amount}` })),
        ),
      ),
    ),
  )
  const outcomes = pairs.map((pair) => pair.map(({ status }) => status).sort())
  stage.say(`${outcomes.length} × ${outcomes[0]}`)
  stage.holds(
    outcomes.every((pair) => `${pair}` === '200,409'),
    'one success and one 409 each',
  )
}

/** Key, nonce, rest of the body; what comes of it. */
const COMBINATIONS = [
  ['same', 'same', 'same', 'replayed'],
  ['same', 'same', 'other', 'protocol.idempotency_conflict'],
  ['same', 'new', 'same', 'protocol.idempotency_conflict'],
  ['same', 'new', 'other', 'protocol.idempotency_conflict'],
  ['new', 'same', 'same', 'protocol.nonce_replay'],
  ['new', 'same', 'other', 'protocol.nonce_replay'],
  ['new', 'new', 'same', 'allow'],
  ['new', 'new', 'other', 'allow'],
] as const

async function nonces(stage: Stage, { url }: PaymentsExample): Promise<void> {
  stage.scene('S7', 'Key and nonce guard against different things: all eight combinations')
  for (const [i, [key, nonce, body, expected]] of COMBINATIONS.entries()) {
    const envelope = { ...INVOICE, payee: `payee ${i}`, nonce: `n-${i}-first` }
    await post(url, `combination-${i}`, JSON.stringify(envelope))
    const second = await post(
      url,
      key === 'same' ? `combination-${i}` : `combination-${i}-new`,
      JSON.stringify({
        ...envelope,
        ...(nonce === 'new' && { nonce: `n-${i}-second` }),
        ...(body === 'other' && { amount: 5 }),
      }),
    )
    const outcome = isReplay(second) ? 'replayed' : (fieldOf(second, 'code') ?? fieldOf(second, 'decision'))
    const what = `${key} key, ${nonce} nonce, ${body} body`
    stage.holds(outcome === expected, `${what.padEnd(33)} ${second.status} ${outcome}`)
  }
}

async function auditLog(stage: Stage, { daemon, data }: PaymentsExample, scratch: string): Promise<void> {
  stage.scene('S8', 'What the audit log has of the first payment')
  const retry = await pay(stage, 'order-1', JSON.stringify(INVOICE))
  await daemon.audit.idle()
  const found = await stage.request(`${AUDIT_PATH}?request_hash=${fieldOf(retry, 'request_hash')}`, {
    headers: { authorization: `Bearer ${TOKENS.operator}` },
  })
  const kinds = (JSON.parse(found.text) as { entries: Array<{ kind: string }> }).entries.map(({ kind }) => kind)
  stage.say(`kinds: ${kinds.join(', ')}`)
  stage.holds(`${kinds}` === 'event,retry,retry', 'one event, and each retry under the same request_hash')

  const file = join(data, 'audit.log')
  stage.holds(verify(stage, file) === 0, 'the chain is intact')
  stage.say('Somebody makes a payment larger, in a copy of the log:')
  const forged = join(scratch, 'forged.log')
  copyFileSync(file, forged)
  writeFileSync(forged, readFileSync(forged, 'utf8').replace('"amount":1999', '"amount":9999'))
  stage.holds(verify(stage, forged) === 1, 'the first broken line is named')
}

async function crashes(stage: Stage, { url, daemon }: PaymentsExample, data: string): Promise<void> {
  stage.scene('S9', 'A client process is killed with its request on the way; another process retries')
  const before = daemon.decisions.count()
  const lost = JSON.stringify({ ...INVOICE, nonce: 'n-lost' })
  const victim = spawnClient(url, 'lost', lost, true)
  await once(victim, 'exit')
  stage.say(`the client ended with ${victim.signalCode}`)
  const other = spawnClient(url, 'lost', lost)
  let answer = ''
  for await (const chunk of other.stdout ?? []) answer += chunk
  stage.say(answer.trim())
  stage.holds(answer.startsWith('200') && daemon.decisions.count() === before + 1, 'decided once')

  stage.scene('S9', 'The network breaks after the request went through, and heals')
  const network = await networkTo(url)
  network.state = 'loses-answers'
  const parted = JSON.stringify({ ...INVOICE, nonce: 'n-parted' })
  const failure = await post(network.url, 'parted', parted).catch((error: Error) => error)
  stage.say(failure instanceof Error ? `the client sees: ${failure.message}` : 'the client has an answer')
  network.state = 'whole'
  const healed = await pay(stage, 'parted', parted, `${network.url}${PAYMENTS_PATH}`)
  await network.close()
  stage.holds(failure instanceof Error && isReplay(healed), 'the retry gets the decision that was made meanwhile')

  stage.scene('S9', 'The daemon itself is killed (kill -9) and started again on its files')
  const doomed = await spawnDaemon({ PAYMENTS_DATA: data })
  const path = (daemonUrl: string) => `${daemonUrl}${PAYMENTS_PATH}`
  const first = await pay(stage, 'order-1', JSON.stringify(INVOICE), path(doomed.url))
  await doomed.kill('SIGKILL')
  const revived = await spawnDaemon({ PAYMENTS_DATA: data })
  stage.say('killed, and started again')
  const again = await pay(stage, 'order-1', JSON.stringify(INVOICE), path(revived.url))
  await revived.kill('SIGTERM')
  stage.holds(isReplay(again) && again.text === first.text, 'the decision is still there')
  stage.holds(verify(stage, join(data, 'audit.log')) === 0, 'and the audit log is intact')
}

/** `oncekey audit verify FILE`. */
function verify(stage: Stage, file: string): number | null {
  const { status, stdout } = spawnSync(process.execPath, [CLI, 'audit', 'verify', file], { encoding: 'utf8' })
  stage.say(`$ oncekey audit verify ${basename(file)}`)
  for (const line of stdout.trim().replaceAll(file, basename(file)).split('\n')) stage.say(`  ${line}`)
  return status
}

function headersOf(key: string): Record<string, string> {
  return { authorization: `Bearer ${TOKENS.anna}`, 'idempotency-key': key, 'content-type': 'application/json' }
}

/** Shown on the stage. */
function pay(stage: Stage, key: string, body: string, path: string = PAYMENTS_PATH): Promise<Answered> {
  return stage.request(path, { method: 'POST', headers: headersOf(key), body }, ['idempotent-replayed'])
}

/** Behind the stage, where there are too many to be shown. */
async function post(url: string, key: string, body: string): Promise<Answered> {
  const response = await fetch(new URL(PAYMENTS_PATH, url), { method: 'POST', headers: headersOf(key), body })
  return { status: response.status, headers: response.headers, text: await response.text() }
}

function isReplay({ headers }: Answered): boolean {
  return headers.get('idempotent-replayed') === 'true'
}

function isRefused(answered: Answered, code: string): boolean {
  return answered.status === 409 && fieldOf(answered, 'code') === code
}

function fieldOf({ text }: Answered, name: string): unknown {
  return (JSON.parse(text) as Record<string, unknown>)[name]
}
