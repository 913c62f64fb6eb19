import { randomUUID } from 'node:crypto'

export type Template = string | Uint8Array

/** Makes payloads from a template: `{{n}}` counts up, `{{uuid}}` is random, and both are new in each payload. */
export class Payloads {
  #made = 0

  make(template: Template | undefined): Uint8Array | undefined {
    if (typeof template !== 'string') return template
    this.#made++
    const [n, uuid] = [String(this.#made), randomUUID()]
    return Buffer.from(template.replaceAll('{{n}}', n).replaceAll('{{uuid}}', uuid))
  }

  /** A payload of the same kind that means something else; `undefined` when none can be made of this. */
  other(template: Template | undefined, payload: Uint8Array | undefined): Uint8Array | undefined {
    if (typeof template === 'string' && hasPlaceholders(template)) return this.make(template)
    const value = parsed(payload)
    if (value === undefined) return undefined
    // Numbers first: more numbers than strings are free to be anything.
    const changed = changedLeaf(value, 'number') ?? changedLeaf(value, 'string')
    return changed === undefined ? undefined : Buffer.from(JSON.stringify(changed.value))
  }
}

export function isJson(template: Template | undefined): boolean {
  if (template === undefined) return false
  const text = Buffer.from(template as string).toString()
  return parsed(Buffer.from(text.replaceAll('{{n}}', '1').replaceAll('{{uuid}}', randomUUID()))) !== undefined
}

/** The same JSON value in other bytes: names in the opposite order, and spaces. */
export function reordered(payload: Uint8Array | undefined): Uint8Array | undefined {
  const value = parsed(payload)
  // JavaScript cannot hold longer numbers, and would change them.
  if (value === undefined || /\d{16}/.test(Buffer.from(payload ?? []).toString())) return undefined
  const text = JSON.stringify(reversed(value), null, 2)
  return text === Buffer.from(payload ?? []).toString() ? undefined : Buffer.from(text)
}

/** JSON that breaks off before its end. */
export function brokenOff(payload: Uint8Array | undefined): Uint8Array | undefined {
  const value = parsed(payload)
  return typeof value === 'object' && value !== null ? Buffer.from(JSON.stringify(value).slice(0, -1)) : undefined
}

export function parsed(bytes: Uint8Array | undefined): unknown {
  if (bytes === undefined) return undefined
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch {
    return undefined
  }
}

/** A value out of a JSON document, by RFC 6901 or by names with dots. */
export function at(document: unknown, path: string): unknown {
  const names = path.startsWith('/')
    ? path
        .slice(1)
        .split('/')
        .map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'))
    : path.split('.').filter((name) => name !== '')
  let value = document
  for (const name of names) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined
    value = (value as Readonly<Record<string, unknown>>)[name]
  }
  return value
}

function hasPlaceholders(template: string): boolean {
  return template.includes('{{n}}') || template.includes('{{uuid}}')
}

function changedLeaf(value: unknown, kind: 'number' | 'string'): { readonly value: unknown } | undefined {
  if (typeof value === 'number' && kind === 'number') return { value: value + 1 }
  if (typeof value === 'string' && kind === 'string') return { value: `${value}x` }
  if (typeof value !== 'object' || value === null) return undefined
  for (const [name, member] of Object.entries(value)) {
    const changed = changedLeaf(member, kind)
    if (changed === undefined) continue
    if (Array.isArray(value)) return { value: value.with(Number(name), changed.value) }
    return { value: { ...value, [name]: changed.value } }
  }
  return undefined
}

function reversed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reversed)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .reverse()
      .map(([name, member]) => [name, reversed(member)]),
  )
}
