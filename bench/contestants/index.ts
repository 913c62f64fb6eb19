import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'

export type Framework = 'fastify' | 'express'

/** `ceiling`: no layer at all, only the durable writes that one needs: what the machine leaves to be had. */
export type Kind = 'bare' | 'oncekey' | 'peer' | 'ceiling'

/** One row of the benchmark. Describing one loads nothing: its code runs in a process of its own. */
export interface Contestant {
  readonly name: string
  readonly framework: Framework
  readonly kind: Kind
  readonly label: string
  /** What the reader must know of how it was set up. */
  readonly settings: string
  start(work: Workplace): Promise<Started>
}

export interface Workplace {
  /** An empty directory on the machine's disk, for stores that write files. */
  readonly directory: string
}

export interface Started {
  readonly port: number
  /** Forgets all records, for a store that slows down as it fills: every slice starts it empty, in its favour. */
  reset?(): void
  close(): Promise<void>
}

export const contestants: readonly Contestant[] = [
  {
    name: 'fastify',
    framework: 'fastify',
    kind: 'bare',
    label: 'bare Fastify',
    settings: 'fastify 5, no logger, no plugin',
    start: async () => (await import('./bare.ts')).startFastify(),
  },
  {
    name: 'fastify+memory',
    framework: 'fastify',
    kind: 'oncekey',
    label: 'oncekey, memory',
    settings: 'memoryStore(), defaults: at most 100,000 records',
    start: async () => (await import('./oncekey.ts')).startFastify('memory', ''),
  },
  {
    name: 'fastify+sqlite',
    framework: 'fastify',
    kind: 'oncekey',
    label: 'oncekey, durable SQLite',
    settings: 'sqliteStore(), defaults: a file, WAL, synchronous=FULL',
    start: async ({ directory }) => (await import('./oncekey.ts')).startFastify('sqlite', directory),
  },
  {
    name: 'fastify+redis',
    framework: 'fastify',
    kind: 'oncekey',
    label: 'oncekey, durable Redis',
    settings: 'redisStore(), defaults, on a Redis of its own: appendonly, appendfsync always',
    start: async () => (await import('./oncekey.ts')).startFastify('redis', ''),
  },
  {
    name: 'fastify+postgres',
    framework: 'fastify',
    kind: 'oncekey',
    label: 'oncekey, PostgreSQL',
    settings: 'postgresStore(), defaults, on a PostgreSQL of its own: fsync and synchronous_commit on',
    start: async () => (await import('./oncekey.ts')).startFastify('postgres', ''),
  },
  {
    name: 'fastify+postgres-unbatched',
    framework: 'fastify',
    kind: 'oncekey',
    label: 'oncekey, PostgreSQL, batching off',
    settings: 'the same with batchMax 1 and 16 connections at once, to show what batching brings',
    start: async () => (await import('./oncekey.ts')).startFastify('postgres-unbatched', ''),
  },
  {
    name: 'fastify+node-idempotency',
    framework: 'fastify',
    kind: 'peer',
    label: '@node-idempotency, memory',
    settings: 'its memory adapter, unbounded; called from preHandler and onSend hooks, as its readme says',
    start: async () => (await import('./node-idempotency.ts')).startMemory(),
  },
  {
    name: 'fastify+node-idempotency-redis',
    framework: 'fastify',
    kind: 'peer',
    label: '@node-idempotency, durable Redis',
    settings: 'the same with its Redis adapter, on a Redis of its own: appendonly, appendfsync always',
    start: async () => (await import('./node-idempotency.ts')).startRedis(),
  },
  {
    name: 'fastify+powertools',
    framework: 'fastify',
    kind: 'peer',
    label: '@aws-lambda-powertools, memory',
    settings: 'its own base class over a Map, records kept as objects, payload validation off: the fastest it can be',
    start: async () => (await import('./powertools.ts')).start(),
  },
  {
    name: 'fastify+sqlite-ceiling',
    framework: 'fastify',
    kind: 'ceiling',
    label: 'Fastify + two hand-overs to SQLite',
    settings: 'no layer: two tiny rows per request, handed in batches to a worker, WAL, synchronous=FULL',
    start: async ({ directory }) => (await import('./ceilings.ts')).startSqlite(directory),
  },
  {
    name: 'fastify+redis-ceiling',
    framework: 'fastify',
    kind: 'ceiling',
    label: 'Fastify + two SETs on Redis',
    settings: 'no layer: two SETs per request by node-redis, on a Redis of its own: appendonly, appendfsync always',
    start: async () => (await import('./ceilings.ts')).startRedis(),
  },
  {
    name: 'fastify+postgres-ceiling',
    framework: 'fastify',
    kind: 'ceiling',
    label: 'Fastify + insert and update on PostgreSQL',
    settings: 'no layer: one tiny row per request, in batches by prepared statements, fsync and synchronous_commit on',
    start: async () => (await import('./ceilings.ts')).startPostgres(),
  },
  {
    name: 'express',
    framework: 'express',
    kind: 'bare',
    label: 'bare Express 5',
    settings: 'express 5 with express.json()',
    start: async () => (await import('./bare.ts')).startExpress(),
  },
  {
    name: 'express+memory',
    framework: 'express',
    kind: 'oncekey',
    label: 'oncekey, memory',
    settings: 'memoryStore(), defaults: at most 100,000 records',
    start: async () => (await import('./oncekey.ts')).startExpress('memory', ''),
  },
  {
    name: 'express+sqlite',
    framework: 'express',
    kind: 'oncekey',
    label: 'oncekey, durable SQLite',
    settings: 'sqliteStore(), defaults: a file, WAL, synchronous=FULL',
    start: async ({ directory }) => (await import('./oncekey.ts')).startExpress('sqlite', directory),
  },
  {
    name: 'express+express-idempotency',
    framework: 'express',
    kind: 'peer',
    label: 'express-idempotency, memory',
    settings: 'its default in-memory adapter (an array that it searches), emptied before every slice',
    start: async () => (await import('./express-idempotency.ts')).start(),
  },
]

/** Listens on a free port of the loopback interface. */
export function listen(server: Server): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => resolve((server.address() as AddressInfo).port))
  })
}

export function shut(server: Server): Promise<void> {
  server.closeAllConnections()
  return new Promise((resolve) => server.close(() => resolve()))
}
