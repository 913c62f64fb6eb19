import { randomUUID } from 'node:crypto'
import type { Db } from 'mongodb'
import { type Field, type Path, type Role, resourceOf } from './schema.ts'

export interface Caller {
  readonly userId: string
  readonly tenantId: string
  readonly role: Role
}

/** What a request comes to, whichever way it came. */
export interface Outcome {
  readonly status: number
  readonly body: Readonly<Record<string, unknown>>
}

export interface Hooks {
  /** The application's own rules. What it throws is a 500. */
  beforeCreate?(path: Path, record: Readonly<Record<string, unknown>>): Promise<void> | void
}

/**
 * The record that this caller's input would become: without the fields that the caller may not write, and stamped with
 * the caller's tenant. It is what is hashed, so that two requests which the server treats alike are alike.
 */
export function effective(path: Path, { role, tenantId }: Caller, input: unknown): unknown {
  if (!isRecord(input)) return input
  const { fields, tenant } = resourceOf(path)
  const written = Object.entries(input).filter(([name]) => fields[name]?.writable?.includes(role) ?? true)
  return { ...Object.fromEntries(written), [tenant]: tenantId }
}

/** Where the records are. REST and MCP both come here. */
export class Records {
  readonly #db: Db
  readonly #hooks: Hooks

  constructor(db: Db, hooks: Hooks) {
    this.#db = db
    this.#hooks = hooks
  }

  async create(path: Path, caller: Caller, input: unknown): Promise<Outcome> {
    const record = effective(path, caller, input)
    const problem = problemOf(path, record)
    if (!isRecord(record) || problem !== undefined) return failed(400, 'VALIDATION', problem ?? 'Send a JSON object.')
    for (const [name, { references }] of Object.entries(resourceOf(path).fields)) {
      if (references === undefined || record[name] === undefined) continue
      const found = await this.#of(references as Path).findOne({ _id: String(record[name]), ...ownedBy(path, caller) })
      if (!found) return failed(422, 'REFERENCE_NOT_FOUND', `There is no ${references} ${String(record[name])}.`)
    }
    await this.#hooks.beforeCreate?.(path, record)
    const saved = { _id: randomUUID(), ...record }
    await this.#of(path).insertOne(saved)
    return { status: 201, body: saved }
  }

  async list(path: Path, caller: Caller): Promise<Outcome> {
    const items = await this.#of(path).find(ownedBy(path, caller)).limit(LIST_MAX).toArray()
    return { status: 200, body: { items } }
  }

  #of(path: Path) {
    return this.#db.collection<{ readonly _id: string; readonly [field: string]: unknown }>(path)
  }
}

const LIST_MAX = 1_000

function ownedBy(path: Path, { tenantId }: Caller): Readonly<Record<string, string>> {
  return { [resourceOf(path).tenant]: tenantId }
}

function problemOf(path: Path, record: unknown): string | undefined {
  if (!isRecord(record)) return undefined
  const { fields, tenant } = resourceOf(path)
  const unknown = Object.keys(record).find((name) => name !== tenant && !Object.hasOwn(fields, name))
  if (unknown !== undefined) return `${unknown} is not a field of ${path}.`
  for (const [name, field] of Object.entries(fields)) {
    if (record[name] === undefined && field.required) return `${name} is missing.`
    if (record[name] !== undefined && !fits(record[name], field)) return `${name} must be a ${field.type}.`
  }
  return undefined
}

function fits(value: unknown, { type }: Field): boolean {
  if (type === 'list') return Array.isArray(value)
  return type === 'object' ? isRecord(value) : typeof value === type
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function failed(status: number, code: string, message: string): Outcome {
  return { status, body: { error: { code, message } } }
}
