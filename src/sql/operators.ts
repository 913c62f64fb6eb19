import { GroupCommit } from '../group-commit.ts'
import type { StoredRecord } from '../store.ts'
import type { SqlSession } from './store.ts'

export type Task<Session, T> = (session: Session) => Promise<T>

type Op<Session, Look> =
  | { readonly verb: 'read'; readonly id: string }
  | { readonly verb: 'look'; readonly look: Look; readonly ids: readonly string[] }
  | { readonly verb: 'task'; readonly task: Task<Session, unknown> }

/** Reads that go together in one statement. */
const BATCH_MAX = 512
const QUEUE_MAX = 10_000

/**
 * What is not on the way of a first request: reads, looks, and the operators' verbs. One connection for all of them, and
 * one statement for the reads and the looks of the same moment. `Look` names the ways in which the database can look.
 */
export abstract class Operators<Session extends SqlSession, Look extends string, Looked> {
  readonly #lane: GroupCommit<Op<Session, Look>, unknown>

  constructor(use: <T>(task: Task<Session, T>) => Promise<T>) {
    const bounds = { batchMax: BATCH_MAX, queueMax: QUEUE_MAX, inFlightMax: 1 }
    this.#lane = new GroupCommit((ops) => use((session) => this.#run(session, ops)), bounds)
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    return (await this.#lane.submit({ verb: 'read', id })) as StoredRecord | undefined
  }

  drain(): Promise<void> {
    return this.#lane.drain()
  }

  /** Each by the id that the record itself carries. */
  protected abstract readAll(session: Session, ids: ReadonlySet<string>): Promise<ReadonlyMap<string, StoredRecord>>
  protected abstract lookAll(session: Session, look: Look, ids: ReadonlySet<string>): Promise<Looked>

  /** What is found of these ids, and perhaps of others. */
  protected async looked(look: Look, ids: readonly string[]): Promise<Looked> {
    return (await this.#lane.submit({ verb: 'look', look, ids })) as Looked
  }

  protected async task<T>(task: Task<Session, T>): Promise<T> {
    const reply = (await this.#lane.submit({ verb: 'task', task })) as () => T
    return reply()
  }

  async #run(session: Session, ops: ReadonlyArray<Op<Session, Look>>): Promise<unknown[]> {
    const read = new Set<string>()
    const looks = new Map<Look, Set<string>>()
    for (const op of ops) {
      if (op.verb === 'read') read.add(op.id)
      if (op.verb !== 'look') continue
      const ids = looks.get(op.look) ?? new Set()
      for (const id of op.ids) ids.add(id)
      looks.set(op.look, ids)
    }
    const records = read.size === 0 ? new Map() : await this.readAll(session, read)
    const looked = new Map<Look, Looked>()
    for (const [look, ids] of looks) looked.set(look, await this.lookAll(session, look, ids))
    const replies: unknown[] = []
    for (const op of ops) {
      if (op.verb === 'read') replies.push(records.get(op.id))
      else if (op.verb === 'look') replies.push(looked.get(op.look))
      else replies.push(await outcomeOf(op.task, session))
    }
    return replies
  }
}

/** A task that failed by itself leaves the others of its batch alone, unless the connection went with it. */
async function outcomeOf<Session extends SqlSession, T>(task: Task<Session, T>, session: Session): Promise<() => T> {
  try {
    const result = await task(session)
    return () => result
  } catch (error) {
    if (!session.isGood) throw error
    return () => {
      throw error
    }
  }
}
