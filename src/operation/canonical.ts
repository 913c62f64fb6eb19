import { isAscii, isUtf8 } from 'node:buffer'
import { types } from 'node:util'
import { OncekeyError } from '../error.ts'
import { canonicalText, DEPTH_MAX } from './json.ts'

/** Values in one payload, counted as often as they are met: what is shared or endless must not run for ever. */
const NODES_MAX = 5_000_000

/** Containers within containers in a value: what a body of a few megabytes can hold, and memory for the walk allows. */
const VALUE_DEPTH_MAX = 1_000_000

/** The RFC 8785 form of a JSON document in UTF-8, or `undefined` for a trap (see `canonicalText`) or invalid UTF-8. */
export function canonicalBytes(bytes: Uint8Array): string | undefined {
  const buffer = asBuffer(bytes)
  if (isAscii(buffer)) return canonicalText(buffer.toString('latin1'))
  return isUtf8(buffer) ? canonicalText(buffer.toString('utf8')) : undefined
}

/** The same bytes, not a copy. */
export function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

/**
 * A text for a JavaScript value: the RFC 8785 form for everything that JSON can say, and for the rest a form that no
 * JSON has, so that values which a handler can tell apart have different texts.
 *
 *   -0  NaN  Infinity  -Infinity  12n  undefined  hole (in a sparse array)
 *   Uint8Array"base64" and so for every typed array, DataView and ArrayBuffer; a Buffer is a Uint8Array
 *   Map[key,value,…]  Set[…]  URLSearchParams"…"
 *   toJSON(…) for an object that has the method, as a Date does
 *
 * Members count when they are enumerable, own and named by a string; a class instance without `toJSON` is its members.
 * The walk is iterative, so a deep value does not end the stack. A cycle, a function, a symbol, an object that hides its
 * content (a Promise, say), more than `NODES_MAX` values or `VALUE_DEPTH_MAX` levels throw `config-invalid`: no text can
 * stand for them.
 */
export function canonicalValue(value: unknown): string {
  try {
    return new Walk().text(value)
  } catch (cause) {
    if (cause instanceof OncekeyError) throw cause
    throw new OncekeyError('config-invalid', 'The payload cannot be fingerprinted: reading it threw an error.', {
      cause,
    })
  }
}

/** A container whose values have not all been written yet. */
class Frame {
  readonly parent: Frame | undefined
  readonly depth: number
  readonly source: object
  readonly items: ArrayLike<unknown>
  /** Sorted names, and then `items` is not used; `undefined` for a list. */
  readonly names: readonly string[] | undefined
  readonly count: number
  readonly closer: string
  index = 0
  text: string

  constructor(parent: Frame | undefined, source: object, items: ArrayLike<unknown> | readonly string[], form: Form) {
    this.parent = parent
    this.depth = parent === undefined ? 1 : parent.depth + 1
    this.source = source
    this.items = items
    this.names = form === OBJECT ? (items as readonly string[]) : undefined
    this.count = items.length
    this.text = form.opener
    this.closer = form.closer
  }

  /** Writes what stands before the value at `index`, and returns that value. */
  next(): unknown {
    const { index, names } = this
    if (names === undefined) {
      if (index > 0) this.text += ','
      return this.items[index]
    }
    const name = names[index] as string
    this.text += index > 0 ? `,${quoted(name)}:` : `${quoted(name)}:`
    return (this.source as Record<string, unknown>)[name]
  }
}

type Form = { readonly opener: string; readonly closer: string }
const ARRAY: Form = { opener: '[', closer: ']' }
const OBJECT: Form = { opener: '{', closer: '}' }
const MAP: Form = { opener: 'Map[', closer: ']' }
const SET: Form = { opener: 'Set[', closer: ']' }
const TO_JSON: Form = { opener: 'toJSON(', closer: ')' }

class Walk {
  frame: Frame | undefined = undefined
  nodes = 0
  /** Containers that are open, kept only beyond `DEPTH_MAX`: a cycle is always deeper than that. */
  ancestors: Set<object> | undefined = undefined

  text(root: unknown): string {
    let value = root
    for (;;) {
      if (++this.nodes > NODES_MAX) throw this.impossible(`it has more than ${NODES_MAX} values`)
      let text = typeof value === 'object' && value !== null ? this.object(value) : this.scalar(value)
      for (;;) {
        const frame: Frame | undefined = this.frame
        if (text !== undefined) {
          if (frame === undefined) return text
          frame.text += text
          frame.index++
        }
        // Here `frame` is open: `object` gives no text only when it has opened one.
        const open = frame as Frame
        if (open.index < open.count) {
          value = open.next()
          break
        }
        text = open.text + open.closer
        this.close(open)
      }
    }
  }

  scalar(value: unknown): string {
    switch (typeof value) {
      case 'string':
        return quoted(value)
      case 'number':
        return Object.is(value, -0) ? '-0' : String(value)
      case 'boolean':
        return value ? 'true' : 'false'
      case 'bigint':
        return `${value}n`
      case 'undefined':
        return this.isHole() ? 'hole' : 'undefined'
      case 'object':
        return 'null'
      default:
        throw this.impossible(`${this.path()} is a ${typeof value}, which has no content to compare`)
    }
  }

  /** The text of an object that has no values within it; otherwise opens a frame for them. */
  object(value: object): string | undefined {
    if (Array.isArray(value)) return this.open(value, value, ARRAY)
    const prototype = Object.getPrototypeOf(value)
    if (prototype === Object.prototype || prototype === null) return this.open(value, sortedNames(value), OBJECT)
    if (ArrayBuffer.isView(value)) return `${tagOf(value)}"${base64(value.buffer, value.byteOffset, value.byteLength)}"`
    if (types.isAnyArrayBuffer(value)) return `ArrayBuffer"${base64(value, 0, value.byteLength)}"`
    const json = this.viaToJson(value)
    if (json !== undefined) return this.open(value, json, TO_JSON)
    if (types.isMap(value)) return this.open(value, [...value].flat(1), MAP)
    if (types.isSet(value)) return this.open(value, [...value], SET)
    if (value instanceof URLSearchParams) return `URLSearchParams${quoted(value.toString())}`
    const names = sortedNames(value)
    if ((names.length === 0 && tagOf(value) !== 'Object') || types.isBoxedPrimitive(value)) {
      throw this.impossible(`${this.path()} is an object of type ${tagOf(value)}, which hides its content`)
    }
    return this.open(value, names, OBJECT)
  }

  /** What the object says that it is, as a list of one. */
  viaToJson(value: object): readonly [unknown] | undefined {
    if (!('toJSON' in value) || typeof value.toJSON !== 'function') return undefined
    const json: unknown = value.toJSON()
    return json === value ? undefined : [json]
  }

  open(source: object, items: ArrayLike<unknown>, form: Form): undefined {
    const frame = new Frame(this.frame, source, items, form)
    if (frame.depth > DEPTH_MAX) this.refuseCycle(source, frame.depth)
    this.frame = frame
  }

  close(frame: Frame): void {
    if (frame.depth > DEPTH_MAX) this.ancestors?.delete(frame.source)
    this.frame = frame.parent
  }

  refuseCycle(source: object, depth: number): void {
    if (depth > VALUE_DEPTH_MAX) throw this.impossible(`it is nested more than ${VALUE_DEPTH_MAX} levels deep`)
    if (this.ancestors === undefined) {
      this.ancestors = new Set()
      for (let frame = this.frame; frame !== undefined; frame = frame.parent) this.ancestors.add(frame.source)
    }
    if (this.ancestors.has(source)) throw this.impossible('it contains itself')
    this.ancestors.add(source)
  }

  isHole(): boolean {
    const { frame } = this
    return frame !== undefined && frame.names === undefined && !(frame.index in frame.items)
  }

  /** Where the walk stands, from the outermost container: `payload.items.0`. */
  path(): string {
    const steps: string[] = []
    for (let frame = this.frame; frame !== undefined && steps.length < PATH_STEPS_MAX; frame = frame.parent) {
      steps.push(frame.names?.[frame.index] ?? String(frame.index))
    }
    return ['payload', ...steps.reverse()].join('.')
  }

  impossible(what: string): OncekeyError {
    return new OncekeyError(
      'config-invalid',
      `The payload cannot be fingerprinted: ${what}. Pass the plain data that decides what the operation does.`,
    )
  }
}

const PATH_STEPS_MAX = 16

/** Up to this many names are sorted by insertion, which beats the built-in sort on short lists. */
const INSERTION_MAX = 24

/** In UTF-16 code units, as RFC 8785 asks. */
function sortedNames(value: object): string[] {
  const names = Object.keys(value)
  if (names.length > INSERTION_MAX) return names.sort()
  for (let i = 1; i < names.length; i++) {
    const name = names[i] as string
    let to = i
    while (to > 0 && (names[to - 1] as string) > name) {
      names[to] = names[to - 1] as string
      to--
    }
    names[to] = name
  }
  return names
}

/** What JSON escapes, or may have to: the rest goes between quotes as it is. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what JSON escapes
const ESCAPED = /["\\\u0000-\u001f\ud800-\udfff]/

/** Up to this length a loop finds out sooner than the expression. */
const LOOP_CHARS_MAX = 48

/** As `JSON.stringify` writes it, which escapes a lone surrogate: the result is always well-formed. */
function quoted(text: string): string {
  if (text.length > LOOP_CHARS_MAX) return ESCAPED.test(text) ? JSON.stringify(text) : `"${text}"`
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code < SPACE || code === QUOTE || code === BACKSLASH || code >= SURROGATES_FROM) return JSON.stringify(text)
  }
  return `"${text}"`
}

const SPACE = 0x20
const QUOTE = 0x22
const BACKSLASH = 0x5c
const SURROGATES_FROM = 0xd800

/** `Uint8Array`, `Map`, … and `Object` for every class that does not name itself. */
function tagOf(value: object): string {
  return Object.prototype.toString.call(value).slice('[object '.length, -1)
}

function base64(buffer: ArrayBufferLike, offset: number, length: number): string {
  return Buffer.from(buffer, offset, length).toString('base64')
}
