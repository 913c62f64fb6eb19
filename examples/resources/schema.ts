/**
 * The one file that somebody writes: every resource in it gets `POST` and `GET /api/v1/<path>`, and the MCP tools
 * `create_<path>` and `list_<path>`.
 */
export const schema = {
  account: {
    tenant: 'tenantId',
    fields: {
      accountName: { type: 'string', required: true },
      industry: { type: 'string' },
      address: { type: 'object' },
      tags: { type: 'list' },
      // What a member sends in it is stripped, not refused: agents repeat whatever a form has shown them.
      creditLimit: { type: 'number', writable: ['admin'] },
    },
  },
  contact: {
    tenant: 'tenantId',
    fields: {
      name: { type: 'string', required: true },
      email: { type: 'string' },
      accountId: { type: 'string', references: 'account' },
      isPrimary: { type: 'boolean' },
    },
  },
  opportunity: {
    tenant: 'tenantId',
    fields: {
      title: { type: 'string', required: true },
      amount: { type: 'number', required: true },
      accountId: { type: 'string', references: 'account' },
      stage: { type: 'string', writable: ['admin'] },
    },
  },
} as const satisfies Readonly<Record<string, Resource>>

export interface Resource {
  /** The field that says whose record it is: stamped by the server, whatever the client sent in it. */
  readonly tenant: string
  readonly fields: Readonly<Record<string, Field>>
}

export interface Field {
  readonly type: keyof FieldTypes
  readonly required?: true
  /** The roles that may write it. Left out: everybody. */
  readonly writable?: readonly Role[]
  /** Holds the `_id` of a record of this resource, of the same tenant. */
  readonly references?: string
}

export interface FieldTypes {
  string: string
  number: number
  boolean: boolean
  object: Readonly<Record<string, unknown>>
  list: readonly unknown[]
}

export type Role = 'member' | 'admin'
export type Path = keyof typeof schema

export const paths = Object.keys(schema) as readonly Path[]

export function resourceOf(path: Path): Resource {
  return schema[path]
}

type Fields<P extends Path> = (typeof schema)[P]['fields']
type RequiredNames<P extends Path> = {
  [Name in keyof Fields<P>]: Fields<P>[Name] extends { readonly required: true } ? Name : never
}[keyof Fields<P>]
type ValueOf<F> = F extends { readonly type: infer Type extends keyof FieldTypes } ? FieldTypes[Type] : never

/** A record as a client writes it. */
export type Draft<P extends Path> = { readonly [Name in RequiredNames<P>]: ValueOf<Fields<P>[Name]> } & {
  readonly [Name in Exclude<keyof Fields<P>, RequiredNames<P>>]?: ValueOf<Fields<P>[Name]>
}

/** A record as the server gives it back. */
export type Saved<P extends Path> = Draft<P> & { readonly _id: string; readonly tenantId: string }
