import { hash, randomBytes } from 'node:crypto'
import { keyedHash } from './keyed-hash.ts'
import { Recent } from './recent.ts'
import { RecentLeaves } from './recent-leaves.ts'

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
  readonly #bodies = new RecentLeaves()
  readonly #changes = new Recent<string, readonly PathChange[]>(CHANGES_MAX, CHANGES_BYTES_MAX)
  readonly #shapes = new Recent<number, readonly string[]>(SHAPES_MAX, SHAPES_BYTES_MAX)

  /** About how much is kept, in all. */
  get bytes(): number {
    return this.#bodies.bytes + this.#changes.bytes + this.#shapes.bytes
  }

  remember(id: string, body: Uint8Array | undefined, contentType: string): void {
    const value = parsed(body, contentType)
    const shape = value === undefined ? undefined : readLeaves(value)
    if (shape === undefined) return
    if (this.#shapes.get(shape) === undefined) {
      const paths = pathsOf(value)
      if (paths === undefined) return
      this.#shapes.put(shape, paths, bytesOf(paths))
    }
    this.#bodies.put(id, shape, scratch, 2 * count)
  }

  /** `undefined`: the first request is not known here, or one of the bodies is not JSON, too large or too deep. */
  compare(id: string, body: Uint8Array | undefined, contentType: string): readonly PathChange[] | undefined {
    const before = this.#bodies.get(id)
    const pathsBefore = before && this.#shapes.get(before.shape)
    const value = pathsBefore && parsed(body, contentType)
    if (!pathsBefore || value === undefined) return undefined
    const paths = readLeaves(value) === undefined ? undefined : pathsOf(value)
    if (!paths) return undefined
    const changes = difference(hashesByPath(pathsBefore, before.hashes), hashesByPath(paths, scratch))
    this.#changes.put(id, changes, bytesOf(changes.map(({ path }) => path)) + changes.length * CHANGE_BYTES)
    return changes
  }

  /** What the last conflict of this operation was about. */
  changes(id: string): readonly PathChange[] | undefined {
    return this.#changes.get(id)
  }
}

const MIB = 1024 * 1024
const CHANGES_MAX = 1_000
const CHANGES_BYTES_MAX = 4 * MIB
const SHAPES_MAX = 1_000
const SHAPES_BYTES_MAX = 4 * MIB
const BODY_BYTES_MAX = 64 * 1024
const LEAVES_MAX = 500
const DEPTH_MAX = 64
/** Of one member. A longer one is data. */
const NAME_CHARS_MAX = 200
/** Of all paths of one body: a name stands in the path of everything beneath it. */
const PATHS_CHARS_MAX = 16 * 1024
/** Around each thing that is kept: an object, or the head of a text, and its place in a list. */
const ENTRY_BYTES = 64
/** Two hashes as texts, and the object around them. */
const CHANGE_BYTES = 128

function bytesOf(paths: readonly string[]): number {
  let bytes = ENTRY_BYTES
  for (const { length } of paths) bytes += 2 * length + ENTRY_BYTES
  return bytes
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

/** The hashes of the values that were read last, two words for each, and how many values there were. */
const scratch = new Uint32Array(2 * LEAVES_MAX)
let count = 0
const SEEDS = crypto.getRandomValues(new Uint32Array(2))
let [shapeLow = 0, shapeHigh = 0] = SEEDS

/** The shape; the hashes are in `scratch`. `undefined`: a name is too long, or something too deep, to be told as a path. */
function readLeaves(value: unknown): number | undefined {
  ;[shapeLow = 0, shapeHigh = 0] = SEEDS
  count = 0
  if (!readLeaf(value, 0)) return undefined
  return (shapeHigh & 0x1fffff) * 0x1_0000_0000 + (shapeLow >>> 0)
}

/** Goes the same way as `addPaths`, so that the n-th hash belongs to the n-th path. */
function readLeaf(value: unknown, depth: number): boolean {
  if (count >= LEAVES_MAX) return true
  const before = count
  if (typeof value === 'object' && value !== null) {
    if (depth >= DEPTH_MAX) return false
    if (Array.isArray(value)) {
      mix('[')
      for (let at = 0; at < value.length; at++) if (!readLeaf(value[at], depth + 1)) return false
    } else {
      mix('{')
      for (const name in value) {
        if (name.length > NAME_CHARS_MAX) return false
        mix(name)
        if (!readLeaf((value as Readonly<Record<string, unknown>>)[name], depth + 1)) return false
      }
    }
    mix(']')
    if (count > before) return true
  }
  keyedHash(typeof value === 'string' ? `"${value}` : JSON.stringify(value), scratch, 2 * count++)
  mix('.')
  return true
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

let charsLeft = 0

/** For a body whose names and depth are within bounds. `undefined`: its paths together are too long. */
function pathsOf(value: unknown): readonly string[] | undefined {
  const paths: string[] = []
  charsLeft = PATHS_CHARS_MAX
  addPaths(value, '', paths)
  return charsLeft < 0 ? undefined : paths
}

function addPaths(value: unknown, path: string, paths: string[]): void {
  if (paths.length >= LEAVES_MAX || charsLeft < 0) return
  const before = paths.length
  if (typeof value === 'object' && value !== null) {
    for (const name in value) {
      const part = name.replaceAll('~', '~0').replaceAll('/', '~1')
      addPaths((value as Readonly<Record<string, unknown>>)[name], `${path}/${part}`, paths)
      if (paths.length >= LEAVES_MAX || charsLeft < 0) return
    }
    if (paths.length > before) return
  }
  charsLeft -= path.length
  paths.push(path)
}

const SHOWN_SECRET = randomBytes(32).toString('hex')
const SHOWN_LENGTH = 16

/** Hashed once more with the path to be shown: equal values at two places do not show as equal. */
function hashesByPath(paths: readonly string[], hashes: Uint32Array): Map<string, string> {
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
