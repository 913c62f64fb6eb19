import type { Contract } from './contract.ts'
import { ietf } from './contracts/ietf.ts'
import { Engine, type EngineOptions } from './engine.ts'
import { OncekeyError } from './error.ts'
import type { Operation, Result, Run } from './execution.ts'
import { fingerprintValue } from './operation/fingerprint.ts'
import { parseKey } from './operation/key.ts'
import { operationId } from './operation/scope.ts'
import { refusal } from './refusal.ts'
import type { Answer, Awaitable, TransactionalStore } from './store.ts'

export interface OncekeyOptions extends Omit<EngineOptions, 'contract'> {
  readonly contract?: EngineOptions['contract']
}

export interface RunInput {
  readonly key: string
  /** Whose key it is: a tenant, a user, a queue. Equal keys of different scopes never meet. Write `public` if it is everybody's. */
  readonly scope: string | readonly string[]
  /** What the operation is about. A retry must bring the same; another one is refused as a conflict. */
  readonly payload?: unknown
}

export interface Oncekey {
  readonly engine: Engine
  /**
   * Runs the handler at most once for this key, and gives every caller its value, as JSON carries it. Throws an
   * `OncekeyError` when there is no value to give: `key-conflict`, `in-flight`, `outcome-unknown`, …
   */
  run<T>(input: RunInput, handler: (run: Run) => Awaitable<T>): Promise<T>
}

export interface TransactionalOncekey<Tx> extends Oncekey {
  /**
   * The same, with the key, the handler's own rows and its value in one transaction of the database: exactly once. A
   * handler that throws leaves nothing behind, and the next caller with this key runs it again.
   */
  transaction<T>(input: RunInput, handler: (tx: Tx, run: Run) => Awaitable<T>): Promise<T>
}

/** Idempotency for plain code: jobs, queue consumers, command lines. For HTTP, see the adapters. */
export function oncekey<Tx>(
  options: OncekeyOptions & { readonly store: TransactionalStore<Tx> },
): TransactionalOncekey<Tx>
export function oncekey(options: OncekeyOptions): Oncekey
export function oncekey(options: OncekeyOptions): TransactionalOncekey<unknown> {
  const engine = new Engine({ ...options, contract: options.contract ?? ietf })
  return {
    engine,
    async run(input, handler) {
      let thrown: { readonly error: unknown } | undefined
      const result = await engine.execute(toOperation(input, engine.contract), async (run) => {
        try {
          return { kind: 'answered', answer: encodeValue(await handler(run)) }
        } catch (error) {
          thrown = { error }
          if (error instanceof OncekeyError && error.code === 'nothing-done') return { kind: 'nothing-done' }
          return { kind: 'answered', answer: encodeError(error) }
        }
      })
      if (thrown) throw thrown.error
      return toValue(result)
    },
    async transaction(input, handler) {
      const result = await engine.transact(toOperation(input, engine.contract), async (tx, run) => {
        return { kind: 'answered', answer: encodeValue(await handler(tx, run)) }
      })
      return toValue(result)
    },
  }
}

function toValue<T>(result: Result): T {
  if (result.kind === 'replayed') return decode(result.answer)
  if (result.kind === 'executed' && result.done.kind === 'answered') return decode(result.done.answer)
  const { code, detail, retryAfterMs } = result.kind === 'refused' ? result.refusal : refusal('outcome-unknown')
  throw new OncekeyError(code, detail, retryAfterMs === undefined ? {} : { retryAfterMs })
}

function toOperation({ key, scope, payload }: RunInput, contract: Contract): Operation {
  const parts = typeof scope === 'string' ? [scope] : scope
  if (!Array.isArray(parts) || parts.length === 0 || parts.some((part) => typeof part !== 'string' || part === '')) {
    throw new OncekeyError(
      'config-invalid',
      'scope is missing: say whose key it is, or write "public" if it is everybody\'s',
    )
  }
  const parsed = parseKey(key, contract.key.lengthMax)
  if (parsed.state === 'absent') throw new OncekeyError('key-missing', 'key is empty; name the operation')
  if (parsed.state === 'invalid') throw new OncekeyError('key-invalid', parsed.reason)
  return { id: operationId(parts, parsed.key), key: parsed.key, fingerprint: fingerprintValue(payload) }
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

/** The first caller gets what a later one will: the value as JSON carries it. `undefined` is an empty body. */
function encodeValue(value: unknown): Answer {
  try {
    return { status: 200, headers: [], body: encoder.encode(JSON.stringify(value) ?? '') }
  } catch (cause) {
    throw new OncekeyError(
      'config-invalid',
      'The handler ran, but its value cannot be kept as JSON (a cycle, or a BigInt). Return plain data: it will not run again under this key.',
      { cause },
    )
  }
}

function encodeError(error: unknown): Answer {
  const { name, message } = error instanceof Error ? error : { name: 'Error', message: String(error) }
  return { status: 500, headers: [], body: encoder.encode(JSON.stringify({ name, message })) }
}

function decode<T>({ status, body }: Answer): T {
  const text = decoder.decode(body ?? undefined)
  const value = text === '' ? undefined : JSON.parse(text)
  if (status < 400) return value
  throw new OncekeyError(
    'handler-failed',
    `The handler of this operation threw ${value?.name}: ${value?.message}. It does not run again under this key.`,
  )
}
