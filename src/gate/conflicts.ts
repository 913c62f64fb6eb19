import { hash, randomBytes } from 'node:crypto'
import { keyedHash } from './keyed-hash.ts'

/** One place in a JSON body where two requests with one key differ. Values are hashed with a secret of this process. */
export interface PathChange {
  /** A JSON pointer (RFC 6901). */
  readonly path: string
  /** `null`: not there. */
  readonly was: string | null
  readonly is: string | null
}

/**
 * Remembers what the recent operations were about, so that a conflict can be explained by the places that differ. No
 * value is kept, only its keyed hash, and nothing leaves this process but those. Bodies of one shape share its paths.
 */
export class ConflictPaths {
  readonly #bodies = new Recent<Leaves>(OPERATIONS_MAX)
  readonly #changes = new Recent<readonly PathChange[]>(CHANGES_MAX)
  readonly #shapes = new Map<number, readonly string[]>()

  remember(id: string, body: Uint8Array | undefined, contentType: string): void {
    const value = parsed(body, contentType)
    if (value === undefined) return
    const leaves = readLeaves(value)
    if (!this.#shapes.has(leaves.shape)) {
      if (this.#shapes.size >= SHAPES_MAX) return
      this.#shapes.set(leaves.shape, pathsOf(value))
    }
    this.#bodies.put(id, leaves)
  }

  /** `undefined`: the first request is not known here, or one of the bodies is not JSON, or too large. */
  compare(id: string, body: Uint8Array | undefined, contentType: string): readonly PathChange[] | undefined {
    const before = this.#bodies.get(id)
    const paths = before && this.#shapes.get(before.shape)
    const value = paths && parsed(body, contentType)
    if (!paths || value === undefined) return undefined
    const changes = difference(hashesByPath(paths, before), hashesByPath(pathsOf(value), readLeaves(value)))
    this.#changes.put(id, changes)
    return changes
  }

  /** What the last conflict of this operation was about. */
  changes(id: string): readonly PathChange[] | undefined {
    return this.#changes.get(id)
  }
}

const OPERATIONS_MAX = 10_000
const CHANGES_MAX = 1_000
const SHAPES_MAX = 1_000
const BODY_BYTES_MAX = 64 * 1024
const LEAVES_MAX = 500
const DEPTH_MAX = 64

/** The last so many; no entry moves when another comes. */
class Recent<T> {
  readonly #values = new Map<string, T>()
  readonly #ids: string[] = []
  readonly #max: number
  #next = 0

  constructor(max: number) {
    this.#max = max
  }

  get(id: string): T | undefined {
    return this.#values.get(id)
  }

  put(id: string, value: T): void {
    if (!this.#values.has(id)) {
      const oldest = this.#ids[this.#next]
      if (oldest !== undefined) this.#values.delete(oldest)
      this.#ids[this.#next] = id
      this.#next = (this.#next + 1) % this.#max
    }
    this.#values.set(id, value)
  }
}

/** What is kept of one body: which names it has, as a number, and two words for each value. */
interface Leaves {
  readonly shape: number
  readonly hashes: Uint32Array
}

function parsed(body: Uint8Array | undefined, contentType: string): unknown {
  if (body === undefined || body.length === 0 || body.length > BODY_BYTES_MAX) return undefined
  if (!/^application\/(?:[\w.+-]+\+)?json\b/i.test(contentType)) return undefined
  try {
    return JSON.parse(Buffer.from(body.buffer, body.byteOffset, body.length).toString('utf8'))
  } catch {
    return undefined
  }
}

const scratch = new Uint32Array(2 * LEAVES_MAX)
const SEEDS = crypto.getRandomValues(new Uint32Array(2))
let [shapeLow = 0, shapeHigh = 0] = SEEDS
let count = 0

function readLeaves(value: unknown): Leaves {
  ;[shapeLow = 0, shapeHigh = 0] = SEEDS
  count = 0
  readLeaf(value, 0)
  const shape = (shapeHigh & 0x1fffff) * 0x1_0000_0000 + (shapeLow >>> 0)
  return { shape, hashes: scratch.slice(0, 2 * count) }
}

/** Goes the same way as `addPaths`, so that the n-th hash belongs to the n-th path. */
function readLeaf(value: unknown, depth: number): void {
  if (count >= LEAVES_MAX) return
  const before = count
  if (typeof value === 'object' && value !== null && depth < DEPTH_MAX) {
    if (Array.isArray(value)) {
      mix('[')
      for (let at = 0; at < value.length; at++) readLeaf(value[at], depth + 1)
    } else {
      mix('{')
      for (const name in value) {
        mix(name)
        readLeaf((value as Readonly<Record<string, unknown>>)[name], depth + 1)
      }
    }
    mix(']')
    if (count > before) return
  }
  keyedHash(typeof value === 'string' ? `"${value}` : JSON.stringify(value), scratch, 2 * count++)
  mix('.')
}

/** Two hashes of all names, seeded: a client cannot know which names would meet. */
function mix(name: string): void {
  for (let at = 0; at < name.length; at++) {
    const code = name.charCodeAt(at)
    shapeLow = Math.imul(shapeLow ^ code, 0x01000193)
    shapeHigh = Math.imul(shapeHigh ^ code, 0x85ebca6b) ^ (shapeHigh >>> 13)
  }
  shapeLow = Math.imul(shapeLow ^ name.length, 0x01000193)
}

function pathsOf(value: unknown): readonly string[] {
  const paths: string[] = []
  addPaths(value, '', paths, 0)
  return paths
}

function addPaths(value: unknown, path: string, paths: string[], depth: number): void {
  if (paths.length >= LEAVES_MAX) return
  const before = paths.length
  if (typeof value === 'object' && value !== null && depth < DEPTH_MAX) {
    for (const name in value) {
      const part = name.replaceAll('~', '~0').replaceAll('/', '~1')
      addPaths((value as Readonly<Record<string, unknown>>)[name], `${path}/${part}`, paths, depth + 1)
    }
    if (paths.length > before) return
  }
  paths.push(path)
}

const SHOWN_SECRET = randomBytes(32).toString('hex')
const SHOWN_LENGTH = 16

/** Hashed once more with the path to be shown: equal values at two places do not show as equal. */
function hashesByPath(paths: readonly string[], { hashes }: Leaves): Map<string, string> {
  return new Map(
    paths.map((path, at) => {
      const text = `${SHOWN_SECRET}${hashes[2 * at]} ${hashes[2 * at + 1]} ${path}`
      return [path, hash('sha256', text, 'hex').slice(0, SHOWN_LENGTH)]
    }),
  )
}

function difference(before: ReadonlyMap<string, string>, now: ReadonlyMap<string, string>): readonly PathChange[] {
  const changes: PathChange[] = []
  for (const [path, was] of before) {
    const is = now.get(path) ?? null
    if (is !== was) changes.push({ path, was, is })
  }
  for (const [path, is] of now) if (!before.has(path)) changes.push({ path, was: null, is })
  return changes
}
