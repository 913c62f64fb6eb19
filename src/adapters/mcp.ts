import type { Contract } from '../contract.ts'
import { OncekeyError, type RefusalCode } from '../error.ts'
import type { Done, Operation, Run } from '../execution.ts'
import { type IdempotencyOptions, isRefusal, Protection } from '../http/protection.ts'
import { renderRefusal } from '../http/refusals.ts'
import { type Refusal, refusal } from '../refusal.ts'
import type { Answer, Awaitable } from '../store.ts'

export type { Run }

/** What `idempotency()` takes: the options of the HTTP adapters, about a tool's call in place of a request. */
export interface ToolIdempotencyOptions<Context extends ToolContext = ToolContext>
  extends Omit<IdempotencyOptions<ToolCall<Context>>, 'key'> {
  /** The tool's argument that is the key. Default `idempotencyKey`. It must be part of the tool's `inputSchema`. */
  readonly keyArgument?: string
  /** The name in the request's `_meta` that is the key, if not given as an argument. Default `oncekey/idempotencyKey`. */
  readonly keyMeta?: string
}

/** One call of a tool, for the resolvers. */
export interface ToolCall<Context extends ToolContext = ToolContext> {
  readonly tool: string
  /** Without the key. */
  readonly args: Readonly<Record<string, unknown>>
  /** As the server gave it: who is asking is at `context.http?.authInfo`. */
  readonly context: Context
}

/** What is read of the second argument of a tool's callback: the first shape is 2.x's, the second 1.x's. */
export interface ToolContext {
  readonly mcpReq?: { readonly _meta?: Meta | undefined } | undefined
  readonly http?: { readonly authInfo?: AuthInfo | undefined } | undefined
  readonly _meta?: Meta | undefined
  readonly authInfo?: AuthInfo | undefined
}

type Meta = { readonly [name: string]: unknown }
type AuthInfo = { readonly clientId: string; readonly extra?: Readonly<Record<string, unknown>> | undefined }

/** A result that this layer made: the tool did not run. */
export type RefusedToolResult = {
  content: { type: 'text'; text: string }[]
  /** Code and words, in the contract's shape. */
  structuredContent: Record<string, unknown>
  isError: true
  _meta?: Record<string, unknown>
}

/** Wraps the callback of one tool; `tool` is the name under which it is registered. */
export type IdempotentTool<Context extends ToolContext> = <
  Args extends object,
  Given extends Context,
  Result extends object,
>(
  tool: string,
  callback: (args: Args, context: Given) => Awaitable<Result>,
) => (args: Args, context: Given) => Promise<Result | RefusedToolResult>

/** For the key's description in `inputSchema`: a model that reads "unique for every request" makes up a new key for each retry. */
export const KEY_DESCRIPTION =
  'Names this operation, so that it takes place once. Use a new value (such as a UUID) for each new operation, and exactly the same value when you repeat a call whose answer you did not get.'

/**
 * Tools of `@modelcontextprotocol/server` 2.x that run at most once for each key:
 *
 *     const once = idempotency({ store, principal: ({ context }) => context.http?.authInfo?.clientId })
 *     server.registerTool('create_account', { inputSchema }, once('create_account', async ({ record }) => …))
 *
 * The key is the argument `idempotencyKey`, or `oncekey/idempotencyKey` in the request's `_meta`; never the JSON-RPC id,
 * which is another one for every retry. An argument that `inputSchema` does not name is dropped by the server before any
 * callback sees it: put the key there, with `KEY_DESCRIPTION`. The fingerprint is over the tool's name and its other
 * arguments, or over `payload`. For the contract's scope a tool is a route of its own.
 *
 * The result is kept whole. A replay has `_idempotent_replay: true` beside `content`, and `oncekey/replayed` in `_meta`;
 * not in `structuredContent`, which clients hold against the tool's output schema. A refusal is a result with `isError`
 * and the contract's code and words. In the contract's table a result counts as status 200, one with `isError` as 422 and
 * a throw as 500; `methods`, `headers` and the refusals' statuses do not apply. A tool that asks for input is not done: its
 * next round runs.
 *
 * Tools of `@modelcontextprotocol/sdk` 1.x work as well: it calls them in the same way, with `_meta` and `authInfo` on the
 * second argument itself.
 */
export function idempotency<Context extends ToolContext = ToolContext>(
  options: ToolIdempotencyOptions<Context>,
): IdempotentTool<Context> {
  const { keyArgument = 'idempotencyKey', keyMeta = 'oncekey/idempotencyKey', ...shared } = options ?? {}
  for (const [option, value] of Object.entries({ keyArgument, keyMeta })) {
    if (typeof value === 'string' && value !== '') continue
    throw new OncekeyError('config-invalid', `${option} must be a name that is not empty, but is ${String(value)}`)
  }
  const protection = new Protection<ToolCall<Context>>(shared as IdempotencyOptions<ToolCall<Context>>)
  return (tool, callback) => {
    if (typeof tool !== 'string' || tool === '' || typeof callback !== 'function') {
      throw new OncekeyError('config-invalid', 'Give the name of the tool, and its callback: once("create_order", fn)')
    }
    return async (args, context) => {
      if (typeof context !== 'object' || context === null) throw withoutArguments(tool)
      const { [keyArgument]: argument, ...others } = args as Record<string, unknown>
      const keys = { argument, meta: (context.mcpReq ?? context)._meta?.[keyMeta] }
      const operation = await operationOf(protection, { tool, args: others, context }, keys)
      if (operation === undefined) return callback(args, context)
      if (isRefusal(operation)) return refused(protection.contract, operation)
      return execute(protection, operation, context, async () => callback(args, context))
    }
  }
}

/** The run behind this call, for the tool: its signal, its attempt, `derive()`. */
export function currentRun(context: object): Run | undefined {
  return runs.get(context)
}

const runs = new WeakMap<object, Run>()

/** `undefined`: it runs without protection. */
async function operationOf<Context extends ToolContext>(
  protection: Protection<ToolCall<Context>>,
  call: ToolCall<Context>,
  { argument, meta }: { readonly argument: unknown; readonly meta: unknown },
): Promise<Operation | Refusal | undefined> {
  const given = [argument, meta].filter((key) => key !== undefined && key !== null)
  if (!given.every((key) => typeof key === 'string')) return refusal('key-invalid', { detail: KEY_NOT_TEXT })
  // One key that is written twice is one key; of two different ones nobody can say which is meant.
  if (new Set(given).size > 1) return refusal('key-invalid', { detail: TWO_KEYS })
  const facts = { method: 'tools/call', target: call.tool, route: call.tool, keys: given[0] }
  const key = protection.key(call, facts)
  if (key === undefined || isRefusal(key)) return key
  const payload = (await protection.payload(() => call)) ?? ({ kind: 'value', value: call.args } as const)
  const named = await protection.named(key, () => call)
  return named && protection.operation(call, facts, named, payload)
}

async function execute<Context extends ToolContext, Result extends object>(
  { engine, contract }: Protection<ToolCall<Context>>,
  operation: Operation,
  context: Context,
  callback: () => Promise<Result>,
): Promise<Result | RefusedToolResult> {
  let end: (() => Result) | undefined
  const outcome = await engine.execute(operation, async (run) => {
    runs.set(context, run)
    try {
      const result = await callback()
      end = () => result
      return doneWith(result, contract.limits.answerBytesMax)
    } catch (error) {
      // The server makes a result of it, or an error of the protocol, as it would without this layer.
      end = () => {
        throw error
      }
      return failedWith(error)
    }
  })
  switch (outcome.kind) {
    case 'replayed':
      return replayed<Result>(outcome.answer)
    case 'refused':
      return refused(contract, outcome.refusal)
    case 'executed': {
      const result = (end as () => Result)()
      return outcome.record === 'unrecorded' ? withMeta(result, { 'oncekey/recorded': false }) : result
    }
  }
}

const STATUS_DONE = 200
const STATUS_IS_ERROR = 422
const STATUS_THROWN = 500

function doneWith(result: object, answerBytesMax: number): Done {
  const { resultType, isError } = result as { readonly resultType?: unknown; readonly isError?: unknown }
  // The call goes on in its next round, with what the client was asked for, under the same key.
  if (resultType === 'input_required') return { kind: 'nothing-done' }
  const body = encode(result)
  const status = isError ? STATUS_IS_ERROR : STATUS_DONE
  return { kind: 'answered', answer: { status, headers: [], body: body.length > answerBytesMax ? null : body } }
}

function failedWith(error: unknown): Done {
  const { code } = (error ?? {}) as { readonly code?: unknown }
  if (code === URL_ELICITATION_REQUIRED || (error instanceof OncekeyError && code === 'nothing-done')) {
    return { kind: 'nothing-done' }
  }
  const text = error instanceof Error ? error.message : String(error)
  const result = { content: [{ type: 'text', text }], isError: true }
  return { kind: 'answered', answer: { status: STATUS_THROWN, headers: [], body: encode(result) } }
}

/** The protocol's own code for: nothing was done yet, go there first and call again. */
const URL_ELICITATION_REQUIRED = -32042

function encode(result: object): Uint8Array {
  return new TextEncoder().encode(JSON.stringify(result))
}

function replayed<Result extends object>({ body }: Answer): Result {
  const result = JSON.parse(new TextDecoder().decode(body ?? undefined)) as Result
  return { ...withMeta(result, { 'oncekey/replayed': true }), _idempotent_replay: true }
}

function withMeta<Result extends object>(result: Result, meta: Meta): Result {
  return { ...result, _meta: { ...(result as { readonly _meta?: Meta })._meta, ...meta } }
}

function refused(contract: Contract, { code, detail, retryAfterMs }: Refusal): RefusedToolResult {
  const words = WORDS[code]
  const { body } = renderRefusal(contract, refusal(code, { detail: words ?? detail, retryAfterMs }))
  return {
    content: [{ type: 'text', text: body }],
    structuredContent: JSON.parse(body) as Record<string, unknown>,
    isError: true,
    ...(retryAfterMs !== undefined && { _meta: { 'oncekey/retryAfterMs': Math.ceil(retryAfterMs) } }),
  }
}

function withoutArguments(tool: string): OncekeyError {
  return new OncekeyError(
    'config-invalid',
    `The tool ${tool} was registered without an inputSchema, so that it is called without arguments, and was not run. Give it one: z.object({ idempotencyKey: z.string().optional() }), or an empty one if the key comes in _meta.`,
  )
}

/** Where the words for HTTP speak of what a tool's call does not have. */
const WORDS: Readonly<Partial<Record<RefusalCode, string>>> = {
  'key-missing':
    'This call carries no idempotency key, so the tool was not run. Give one that is new for each operation and the same for each retry of it.',
  'key-conflict':
    'An earlier call used this idempotency key with other arguments. The tool was not run, and the earlier call is untouched. Use a new key for a new operation, or repeat the call exactly as it was first made.',
  'in-flight':
    'Another call with this idempotency key is being processed, so the tool was not run again. Repeat the call with the same key a little later to get its answer.',
}

const KEY_NOT_TEXT = 'The idempotency key is not a string, so the tool was not run. Send it as a string.'
const TWO_KEYS =
  'The idempotency key in the arguments is not the one in _meta, so the tool was not run. Send it in one place.'
